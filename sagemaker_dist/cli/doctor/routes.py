# SPDX-License-Identifier: Apache-2.0
"""Check that the job's subnets have a route to S3: an S3 endpoint of the VPC, or NAT."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sagemaker_dist.cli.doctor.rows import Row, ok, warn

Described = Mapping[str, Any]  # one element of EC2's answers

_NAME = "s3 from the vpc"


def route_row(ec2: Any, subnets: Sequence[Described]) -> Row:
    """Return the result of a check that every subnet has a route to S3.

    Without a route, hosts cannot read data from S3 or write the model to S3. `ec2` is a client of
    boto3; `subnets` are elements of DescribeSubnets, all in one VPC.
    """
    vpc, service = subnets[0]["VpcId"], f"com.amazonaws.{ec2.meta.region_name}.s3"
    here = [{"Name": "vpc-id", "Values": [vpc]}]
    filters = [*here, {"Name": "service-name", "Values": [service]}]
    ends = ec2.describe_vpc_endpoints(Filters=filters)["VpcEndpoints"]
    tables = ec2.describe_route_tables(Filters=here)["RouteTables"]
    routes = {
        each["SubnetId"]: _route(_tables_of(each["SubnetId"], tables), ends) for each in subnets
    }
    closed = [subnet for subnet, route in routes.items() if route is None]
    if not closed:
        return ok(_NAME, f"by {', '.join(dict.fromkeys(filter(None, routes.values())))}")
    text = f"neither an S3 endpoint nor NAT for {', '.join(closed)}"
    unused = [f"{each['VpcEndpointId']} is {_why_not(each)}" for each in ends]
    missing = [each["RouteTableId"] for name in closed for each in _tables_of(name, tables)]
    return warn(_NAME, "; ".join([text, *unused]), _hint(vpc, service, ends, missing))


def _route(tables: Sequence[Described], ends: Iterable[Described]) -> str | None:
    """Return a text for a subnet's route to S3; None if the subnet has no route.

    The text is the ID of an endpoint, or "NAT, or another route out". `tables` are the subnet's
    route tables, `ends` the S3 endpoints of the VPC, both as EC2 describes them.
    """
    ids = {each["RouteTableId"] for each in tables}
    for end in ends:
        if _is_available(end) and (_is_private(end) or ids & set(end.get("RouteTableIds", []))):
            return str(end["VpcEndpointId"])
    return "NAT, or another route out" if _leads_out(tables) else None


def _is_available(end: Described) -> bool:
    return str(end.get("State", "")).lower() == "available"


def _is_gateway(end: Described) -> bool:
    return str(end.get("VpcEndpointType", "Gateway")) == "Gateway"


def _is_private(end: Described) -> bool:
    """Return whether a VPC endpoint is an interface endpoint with private DNS.

    With such an endpoint, S3's public host name leads to this endpoint, in the whole VPC.
    """
    return not _is_gateway(end) and bool(end.get("PrivateDnsEnabled"))


def _why_not(end: Described) -> str:
    if not _is_available(end):
        return str(end.get("State", "not there"))
    return "not in their route tables" if _is_gateway(end) else "an interface without private DNS"


def _hint(vpc: str, service: str, ends: Iterable[Described], tables: Iterable[str]) -> str:
    ids = " ".join(dict.fromkeys(tables))
    there = [each["VpcEndpointId"] for each in ends if _is_available(each) and _is_gateway(each)]
    if there:
        change = f"aws ec2 modify-vpc-endpoint --vpc-endpoint-id {there[0]}"
        return f"Run: {change} --add-route-table-ids {ids}"
    make = f"aws ec2 create-vpc-endpoint --vpc-id {vpc} --service-name {service}"
    return f"Run: {make} --route-table-ids {ids}"


def _tables_of(subnet: str, tables: Sequence[Described]) -> list[Described]:
    """Return the route tables of a subnet; if the subnet has none, the VPC's main table.

    `subnet` is the subnet's ID, `tables` are all route tables of the VPC.
    """
    own = [each for each in tables if subnet in {a.get("SubnetId") for a in each["Associations"]}]
    return own or [each for each in tables if any(a.get("Main") for a in each["Associations"])]


def _leads_out(tables: Iterable[Described]) -> bool:
    """Return whether these route tables have a default route to outside the VPC, such as NAT.

    An internet gateway does not count: the job's hosts have no public addresses.
    """
    return any(
        route.get("DestinationCidrBlock") == "0.0.0.0/0"
        and route.get("State") != "blackhole"
        and not str(route.get("GatewayId", "")).startswith("igw-")
        for table in tables
        for route in table["Routes"]
    )
