# SPDX-License-Identifier: Apache-2.0
"""Evaluation of security group rules from EC2's descriptions, without a call to AWS."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, collapse_addresses
from typing import Any, Final

Group = Mapping[str, Any]  # one element of DescribeSecurityGroups
Rule = Mapping[str, Any]
Ports = tuple[int, int]

EVERY_PORT: Final[Ports] = (0, 65535)
_ANY: Final = "-1"
_TCP: Final = frozenset({_ANY, "tcp", "6"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The other end of a connection."""

    groups: frozenset[str]
    cidrs: tuple[str, ...] = ()


def lets_in(groups: Iterable[Group], peer: Peer, ports: Ports) -> bool | None:
    """Whether TCP from a peer reaches these ports of a host with these groups.

    None where a list of prefixes decides, whose entries are not in the descriptions.
    """
    return _passes([rule for each in groups for rule in each["IpPermissions"]], peer, ports)


def lets_out(groups: Iterable[Group], peer: Peer, ports: Ports) -> bool | None:
    """Whether a host with these groups may talk TCP to these ports of a peer, or None."""
    return _passes([rule for each in groups for rule in each["IpPermissionsEgress"]], peer, ports)


def _passes(rules: Sequence[Rule], peer: Peer, ports: Ports) -> bool | None:
    """Rules may share ports and addresses out among themselves."""
    first, last = ports
    given = [(_ports(rule), rule) for rule in rules if rule["IpProtocol"] in _TCP]
    ends = {end + 1 for (_, end), _ in given} | {begin for (begin, _), _ in given}
    begins = [first, *sorted(each for each in ends if first < each <= last)]
    verdicts = [
        _is_open([rule for (begin, end), rule in given if begin <= port <= end], peer)
        for port in begins
    ]
    return False if False in verdicts else None if None in verdicts else True


def _is_open(rules: Sequence[Rule], peer: Peer) -> bool | None:
    """Whether these rules, of one port, are for every address of a peer."""
    pairs = {each.get("GroupId") for rule in rules for each in rule.get("UserIdGroupPairs", [])}
    if pairs & peer.groups:
        return True
    texts = [each["CidrIp"] for rule in rules for each in rule.get("IpRanges", [])]
    ranges = list(collapse_addresses(IPv4Network(each, strict=False) for each in texts))
    homes = [IPv4Network(each, strict=False) for each in peer.cidrs]
    if homes and all(any(home.subnet_of(each) for each in ranges) for home in homes):
        return True
    return None if any(rule.get("PrefixListIds") for rule in rules) else False


def _ports(rule: Rule) -> Ports:
    if rule["IpProtocol"] == _ANY:
        return EVERY_PORT
    return rule.get("FromPort", 0), rule.get("ToPort", EVERY_PORT[1])
