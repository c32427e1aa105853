# SPDX-License-Identifier: Apache-2.0
"""Checks of the job's VPC: free addresses in subnets, security groups that connect ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.cli.doctor.routes import route_row
from sagemaker_dist.cli.doctor.rows import Row, aws_rows, code_of, fail, ok, unknown, warn
from sagemaker_dist.cli.doctor.rules import EVERY_PORT, Group, Peer, allows_egress, allows_ingress

PREFIX_LIST_HINT: Final = (
    "Check the prefix list's entries, or add a rule that names the security groups"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Subnets and security groups of a job, as EC2 describes them.

    Attributes:
        subnets: Elements of DescribeSubnets.
        groups: Elements of DescribeSecurityGroups.
    """

    subnets: tuple[dict[str, Any], ...]
    groups: tuple[Group, ...]

    @property
    def hosts(self) -> Peer:
        """Return the security groups and the address ranges of the job's hosts."""
        return Peer(
            groups=frozenset(each["GroupId"] for each in self.groups),
            cidrs=tuple(each["CidrBlock"] for each in self.subnets),
        )

    @property
    def vpcs(self) -> list[str]:
        """Return the IDs of the VPCs of the subnets and security groups, each once.

        A job can run in one VPC only.
        """
        return sorted({each["VpcId"] for each in (*self.subnets, *self.groups)})


def network_rows(
    session: Any, subnets: Sequence[str], groups: Sequence[str], num_hosts: int
) -> Iterator[tuple[Row, Network | None]]:
    """Check the job's network, and yield a pair (result, None) for each check.

    The last pair has the job's network in place of None, if EC2 describes the subnets and security
    groups.

    Args:
        session: boto3.Session.
        subnets: IDs of the job's subnets.
        groups: IDs of the job's security groups.
        num_hosts: Number of hosts, each of which needs an address.
    """
    ec2, found = session.client("ec2"), Network(subnets=(), groups=())

    def describe_subnets() -> Iterator[Row]:
        nonlocal found
        there = ec2.describe_subnets(SubnetIds=list(subnets))["Subnets"]
        found = Network(subnets=tuple(there), groups=())
        yield from _subnet_rows(there, num_hosts)

    def describe_groups() -> Iterator[Row]:
        nonlocal found
        there = ec2.describe_security_groups(GroupIds=list(groups))["SecurityGroups"]
        found = Network(subnets=found.subnets, groups=tuple(there))
        yield from _group_rows(found, num_hosts)

    for row in _ec2_rows("subnets", "ec2:DescribeSubnets", describe_subnets):
        yield row, None
    for row in _ec2_rows("security groups", "ec2:DescribeSecurityGroups", describe_groups):
        yield row, None
    if found.subnets and found.groups:
        s3_rows = aws_rows(
            "s3 from the vpc", "ec2:DescribeVpcEndpoints", lambda: [route_row(ec2, found.subnets)]
        )
        for row in s3_rows:
            yield row, None
        yield _vpc_row(found), found


def _ec2_rows(name: str, action: str, call: Any) -> Iterator[Row]:
    def call_and_find_missing() -> Iterator[Row]:
        from botocore.exceptions import ClientError

        try:
            yield from call()
        except ClientError as error:
            if not code_of(error).endswith((".NotFound", ".Malformed")):
                raise
            text = str(error.response["Error"]["Message"]).rstrip(".")
            yield fail(name, text, "Correct the job file, or the region")

    return aws_rows(name, action, call_and_find_missing)


def _subnet_rows(subnets: list[dict[str, Any]], num_hosts: int) -> Iterator[Row]:
    for each in subnets:
        free, zone = each["AvailableIpAddressCount"], each["AvailabilityZone"]
        text = f"{each['SubnetId']} in {zone} has {free} free addresses"
        if free < num_hosts:
            hint = f"Free {num_hosts - free} more addresses, or name another subnet"
            yield fail("subnet", f"{text} for {num_hosts} hosts", hint)
        else:
            yield ok("subnet", text)


def _group_rows(network: Network, num_hosts: int) -> Iterator[Row]:
    names = ", ".join(each["GroupId"] for each in network.groups)
    if num_hosts == 1:
        yield ok("security groups", names)
        return
    checks = {"ingress": allows_ingress, "egress": allows_egress}
    passes = {
        direction: allows(network.groups, network.hosts, EVERY_PORT)
        for direction, allows in checks.items()
    }
    for direction in (each for each, is_open in passes.items() if is_open is False):
        first = network.groups[0]["GroupId"]
        yield fail(
            "security groups",
            f"{names}: ranks cannot reach each other on every TCP port ({direction})",
            f"Run: aws ec2 authorize-security-group-{direction} --group-id {first} --ip-permissions"
            f" 'IpProtocol=-1,UserIdGroupPairs=[{{GroupId={first}}}]'",
        )
    unsure = [direction for direction, is_open in passes.items() if is_open is None]
    if unsure:
        text = f"{names}: a prefix list decides whether ranks reach each other"
        yield unknown("security groups", f"{text} ({', '.join(unsure)})", PREFIX_LIST_HINT)
    elif all(passes.values()):
        yield ok("security groups", f"{names}: hosts reach each other")


def _vpc_row(network: Network) -> Row:
    if len(network.vpcs) > 1:
        text = f"subnets and security groups are in {', '.join(network.vpcs)}"
        return fail("vpc", text, "Name subnets and security groups of one VPC")
    zones = {each["AvailabilityZone"] for each in network.subnets}
    if len(zones) > 1:
        hint = "Name subnets of one zone; if the job has file systems, of the zone where they are"
        return warn(
            "vpc",
            f"{network.vpcs[0]}: the subnets are in {len(zones)} zones, and SageMaker uses one",
            hint,
        )
    return ok("vpc", network.vpcs[0])
