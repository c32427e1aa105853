# SPDX-License-Identifier: Apache-2.0
"""What security groups let through: EC2's descriptions, read without asking anybody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final

Group = Mapping[str, Any]  # as DescribeSecurityGroups has it
Ports = tuple[int, int]

EVERY_PORT: Final[Ports] = (0, 65535)
_ANY: Final = "-1"
_TCP: Final = frozenset({"tcp", "6"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who talks to a host: with the groups and addresses that it has."""

    groups: frozenset[str]
    cidrs: tuple[str, ...] = ()


def lets_in(groups: Iterable[Group], peer: Peer, ports: Ports) -> bool:
    """Whether TCP from a peer reaches these ports of a host with these groups."""
    return _passes([rule for each in groups for rule in each["IpPermissions"]], peer, ports)


def lets_out(groups: Iterable[Group], peer: Peer, ports: Ports) -> bool:
    """Whether a host with these groups may talk TCP to these ports of a peer."""
    return _passes([rule for each in groups for rule in each["IpPermissionsEgress"]], peer, ports)


def _passes(rules: Sequence[Mapping[str, Any]], peer: Peer, ports: Ports) -> bool:
    """Rules may share the ports out among themselves."""
    open_ranges = sorted(_ports(rule) for rule in rules if _is_for(rule, peer))
    first, last = ports
    for start, end in open_ranges:
        if start <= first <= end:
            first = end + 1
    return first > last


def _ports(rule: Mapping[str, Any]) -> Ports:
    if rule["IpProtocol"] == _ANY:
        return EVERY_PORT
    return rule.get("FromPort", 0), rule.get("ToPort", EVERY_PORT[1])


def _is_for(rule: Mapping[str, Any], peer: Peer) -> bool:
    if rule["IpProtocol"] != _ANY and rule["IpProtocol"] not in _TCP:
        return False
    pairs = {each.get("GroupId") for each in rule.get("UserIdGroupPairs", [])}
    ranges = [ip_network(each["CidrIp"]) for each in rule.get("IpRanges", [])]
    homes = [ip_network(each) for each in peer.cidrs]
    within = [any(home.subnet_of(each) for each in ranges) for home in homes]  # type: ignore[arg-type]
    return bool(pairs & peer.groups) or (bool(within) and all(within))
