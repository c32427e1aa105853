# SPDX-License-Identifier: Apache-2.0
"""Checks that the job's hosts reach FSx for Lustre and EFS on their ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sagemaker_dist.cli.doctor.rows import Row, aws_rows, code_of, fail, ok, unknown, warn
from sagemaker_dist.cli.doctor.rules import Group, Peer, Ports, allows_egress, allows_ingress
from sagemaker_dist.cli.doctor.vpc_checks import PREFIX_LIST_HINT, Network

# Amazon FSx for Lustre user guide, "File system access control with Amazon VPC"; Amazon EFS user
# guide, "Using VPC security groups". Both read 2026-11-21.
_LUSTRE: Final[tuple[Ports, ...]] = ((988, 988), (1018, 1023))
_NFS: Final[tuple[Ports, ...]] = ((2049, 2049),)
_GONE: Final = frozenset({"FileSystemNotFound"})


def file_system_rows(session: Any, source: dict[str, Any], network: Network) -> Iterator[Row]:
    """Yield the results of checks that the job's hosts reach the file system of an input channel.

    `source` is the channel's FileSystemDataSource in the arguments of CreateTrainingJob; `network`
    has the subnets and security groups of the job.
    """
    name = source["FileSystemId"]
    is_lustre = source["FileSystemType"] == "FSxLustre"
    action = "fsx:DescribeFileSystems" if is_lustre else "elasticfilesystem:DescribeMountTargets"
    check = _lustre if is_lustre else _efs

    def call() -> Iterator[Row]:
        from botocore.exceptions import ClientError

        try:
            yield from check(session, source, network)
        except ClientError as error:
            if code_of(error) not in _GONE:
                raise
            yield fail(name, "there is no such file system", "Correct its id, or the region")

    yield from aws_rows(name, action, call)


def _lustre(session: Any, source: dict[str, Any], network: Network) -> Iterator[Row]:
    name = source["FileSystemId"]
    found = session.client("fsx").describe_file_systems(FileSystemIds=[name])["FileSystems"][0]
    state = found.get("Lifecycle", "AVAILABLE")
    if state not in {"AVAILABLE", "UPDATING"}:
        text = f"the file system is {state}"
        yield fail(name, text, "Wait until it is AVAILABLE, or create another one")
    vpc = found.get("VpcId")
    if vpc and vpc not in network.vpcs:
        text = f"the file system is in {vpc}, but the job is in {network.vpcs[0]}"
        yield fail(name, text, f"Name subnets of {vpc}")
        return
    mount = found.get("LustreConfiguration", {}).get("MountName")
    directory = source["DirectoryPath"]
    if mount and directory.strip("/").partition("/")[0] != mount:
        yield fail(
            name,
            f"{directory} does not begin with the file system's mount name {mount}",
            f"Write fsx://{name}/{mount}/… in the job file",
        )
    yield from _ports_rows(session, name, found.get("NetworkInterfaceIds", []), network)


def _ports_rows(session: Any, name: str, interfaces: list[str], network: Network) -> Iterator[Row]:
    if not interfaces:
        yield unknown(name, "FSx lists no network interface of this file system")
        return
    ec2 = session.client("ec2")
    found = ec2.describe_network_interfaces(NetworkInterfaceIds=interfaces)["NetworkInterfaces"]
    ids = sorted({group["GroupId"] for each in found for group in each["Groups"]})
    groups = ec2.describe_security_groups(GroupIds=ids)["SecurityGroups"]
    yield _reach_row(name, groups, network, _LUSTRE)


def _efs(session: Any, source: dict[str, Any], network: Network) -> Iterator[Row]:
    name, efs = source["FileSystemId"], session.client("efs")
    targets = efs.describe_mount_targets(FileSystemId=name)["MountTargets"]
    for subnet in network.subnets:
        zone = subnet["AvailabilityZone"]
        near = [
            each
            for each in targets
            if each.get("VpcId", subnet["VpcId"]) == subnet["VpcId"]
            and each.get("AvailabilityZoneName", zone) == zone
        ]
        if not near:
            text = (
                f"the file system has no mount target in {zone} of {subnet['VpcId']}, the zone of"
                f" {subnet['SubnetId']}"
            )
            yield warn(
                name,
                text,
                "Create a mount target in this zone, or name a subnet of a zone that has one",
            )
            continue
        target = near[0]["MountTargetId"]
        ids = efs.describe_mount_target_security_groups(MountTargetId=target)["SecurityGroups"]
        groups = session.client("ec2").describe_security_groups(GroupIds=ids)["SecurityGroups"]
        yield _reach_row(name, groups, network, _NFS)


def _reach_row(name: str, groups: list[Group], network: Network, ports: tuple[Ports, ...]) -> Row:
    file_system = Peer(groups=frozenset(each["GroupId"] for each in groups))
    ingress = {each: allows_ingress(groups, network.hosts, each) for each in ports}
    every = Peer(groups=file_system.groups, cidrs=network.hosts.cidrs)
    egress = {each: allows_egress(network.groups, every, each) for each in ports}
    closed_in, closed_out = _closed(ingress), _closed(egress)
    here, there = network.groups[0]["GroupId"], groups[0]["GroupId"]
    if closed_in:
        text = f"the file system's security groups block the job on ports {_text(closed_in)}"
        return fail(name, text, _authorize("ingress", there, here, closed_in))
    if closed_out:
        text = f"the job's security groups block connections to ports {_text(closed_out)}"
        return fail(name, text, _authorize("egress", here, there, closed_out))
    if None in {*ingress.values(), *egress.values()}:
        text = f"a prefix list decides whether ports {_text(ports)} are open to the job"
        return unknown(name, text, PREFIX_LIST_HINT)
    return ok(name, f"ports {_text(ports)} are open to the job")


def _closed(verdicts: Mapping[Ports, bool | None]) -> list[Ports]:
    return [ports for ports, is_open in verdicts.items() if is_open is False]


def _text(ports: list[Ports] | tuple[Ports, ...]) -> str:
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ports)


def _authorize(direction: str, group: str, other: str, ports: list[Ports]) -> str:
    rules = " ".join(
        f"'IpProtocol=tcp,FromPort={a},ToPort={b},UserIdGroupPairs=[{{GroupId={other}}}]'"
        for a, b in ports
    )
    return (
        f"Run: aws ec2 authorize-security-group-{direction} --group-id {group}"
        f" --ip-permissions {rules}"
    )
