# SPDX-License-Identifier: Apache-2.0
"""The job's own network: subnets with room, security groups that let ranks talk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.cli.doctor.routes import way_row
from sagemaker_dist.cli.doctor.rows import Row, asked, code_of, fail, ok, unknown, warn
from sagemaker_dist.cli.doctor.rules import EVERY_PORT, Group, Peer, lets_in, lets_out

_PREFIXES: Final = "Look at its entries, or add a rule for the groups themselves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What EC2 says of it.

    Attributes:
        subnets: As DescribeSubnets has them.
        groups: As DescribeSecurityGroups has them.
    """

    subnets: tuple[dict[str, Any], ...]
    groups: tuple[Group, ...]

    @property
    def hosts(self) -> Peer:
        """The job's hosts, as others see them come."""
        return Peer(
            groups=frozenset(each["GroupId"] for each in self.groups),
            cidrs=tuple(each["CidrBlock"] for each in self.subnets),
        )

    @property
    def vpcs(self) -> list[str]:
        """Where subnets and groups are; one, where all is well."""
        return sorted({each["VpcId"] for each in (*self.subnets, *self.groups)})


def network_rows(
    session: Any, subnets: Sequence[str], groups: Sequence[str], num_hosts: int
) -> Iterator[tuple[Row, Network | None]]:
    """Rows; what was found comes with the last."""
    ec2, found = session.client("ec2"), Network(subnets=(), groups=())

    def ask_subnets() -> Iterator[Row]:
        nonlocal found
        there = ec2.describe_subnets(SubnetIds=list(subnets))["Subnets"]
        found = Network(subnets=tuple(there), groups=())
        yield from _subnet_rows(there, num_hosts)

    def ask_groups() -> Iterator[Row]:
        nonlocal found
        there = ec2.describe_security_groups(GroupIds=list(groups))["SecurityGroups"]
        found = Network(subnets=found.subnets, groups=tuple(there))
        yield from _group_rows(found, num_hosts)

    for row in _asked_of_ec2("subnets", "ec2:DescribeSubnets", ask_subnets):
        yield row, None
    for row in _asked_of_ec2("security groups", "ec2:DescribeSecurityGroups", ask_groups):
        yield row, None
    if found.subnets and found.groups:
        ways = asked(
            "s3 from the vpc", "ec2:DescribeVpcEndpoints", lambda: [way_row(ec2, found.subnets)]
        )
        for row in ways:
            yield row, None
        yield _vpc_row(found), found


def _asked_of_ec2(name: str, action: str, ask: Any) -> Iterator[Row]:
    def careful() -> Iterator[Row]:
        from botocore.exceptions import ClientError

        try:
            yield from ask()
        except ClientError as error:
            if not code_of(error).endswith((".NotFound", ".Malformed")):
                raise
            says = str(error.response["Error"]["Message"]).rstrip(".")
            yield fail(name, says, "Correct the job file, or the region")

    return asked(name, action, careful)


def _subnet_rows(subnets: list[dict[str, Any]], num_hosts: int) -> Iterator[Row]:
    for each in subnets:
        free, zone = each["AvailableIpAddressCount"], each["AvailabilityZone"]
        says = f"{each['SubnetId']} in {zone} has {free} free addresses"
        if free < num_hosts:
            mend = f"Free {num_hosts - free} more, or name another subnet"
            yield fail("subnet", f"{says} for {num_hosts} hosts", mend)
        else:
            yield ok("subnet", says)


def _group_rows(network: Network, num_hosts: int) -> Iterator[Row]:
    names = ", ".join(each["GroupId"] for each in network.groups)
    if num_hosts == 1:
        yield ok("security groups", names)
        return
    ways = {"ingress": lets_in, "egress": lets_out}
    passes = {way: ask(network.groups, network.hosts, EVERY_PORT) for way, ask in ways.items()}
    for way in (way for way, is_open in passes.items() if is_open is False):
        first = network.groups[0]["GroupId"]
        yield fail(
            "security groups",
            f"{names}: ranks cannot reach each other on every TCP port ({way})",
            f"Run: aws ec2 authorize-security-group-{way} --group-id {first} --ip-permissions"
            f" 'IpProtocol=-1,UserIdGroupPairs=[{{GroupId={first}}}]'",
        )
    unsure = [way for way, is_open in passes.items() if is_open is None]
    if unsure:
        says = f"{names}: a list of prefixes decides whether ranks reach each other"
        yield unknown("security groups", f"{says} ({', '.join(unsure)})", _PREFIXES)
    elif all(passes.values()):
        yield ok("security groups", f"{names}: hosts reach each other")


def _vpc_row(network: Network) -> Row:
    if len(network.vpcs) > 1:
        says = f"subnets and security groups are in {', '.join(network.vpcs)}"
        return fail("vpc", says, "Name those of one VPC")
    zones = {each["AvailabilityZone"] for each in network.subnets}
    if len(zones) > 1:
        mend = "Name the subnets of one zone, where the file systems are"
        return warn("vpc", f"{network.vpcs[0]}, in {len(zones)} zones: SageMaker takes one", mend)
    return ok("vpc", network.vpcs[0])
