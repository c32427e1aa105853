# SPDX-License-Identifier: Apache-2.0
"""Evaluation of security group rules, as EC2 describes them, without calls to AWS."""

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
    """Hosts at the other end of a connection.

    Attributes:
        groups: IDs of the hosts' security groups.
        cidrs: Ranges of the hosts' IPv4 addresses, such as "10.0.0.0/24"; empty if unknown.
    """

    groups: frozenset[str]
    cidrs: tuple[str, ...] = ()


def allows_ingress(groups: Iterable[Group], peer: Peer, ports: Ports) -> bool | None:
    """Return whether security groups let a peer connect by TCP to all these ports of a host.

    `groups` are the security groups of the host; `ports` is a pair, the first and the last port.
    The result is None if it depends on a prefix list, whose addresses EC2 does not report here.
    """
    return _passes([rule for each in groups for rule in each["IpPermissions"]], peer, ports)


def allows_egress(groups: Iterable[Group], peer: Peer, ports: Ports) -> bool | None:
    """Return whether security groups let a host connect by TCP to all these ports of a peer.

    `groups` are the security groups of the host; `ports` is a pair, the first and the last port.
    The result is None if it depends on a prefix list, whose addresses EC2 does not report here.
    """
    return _passes([rule for each in groups for rule in each["IpPermissionsEgress"]], peer, ports)


def _passes(rules: Sequence[Rule], peer: Peer, ports: Ports) -> bool | None:
    """Return whether the rules together allow a range of ports, for all addresses of the peer.

    `ports` is a pair, the first and the last port. The result is None if it depends on a prefix
    list, whose addresses are not known here.
    """
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
    """Return whether the rules, all for the same port, together allow every address of the peer.

    The result is None if it depends on a prefix list, whose addresses are not known here.
    """
    pairs = {each.get("GroupId") for rule in rules for each in rule.get("UserIdGroupPairs", [])}
    if pairs & peer.groups:
        return True
    texts = [each["CidrIp"] for rule in rules for each in rule.get("IpRanges", [])]
    ranges = list(collapse_addresses(IPv4Network(each, strict=False) for each in texts))
    needed = [IPv4Network(each, strict=False) for each in peer.cidrs]
    if needed and all(any(cidr.subnet_of(each) for each in ranges) for cidr in needed):
        return True
    return None if any(rule.get("PrefixListIds") for rule in rules) else False


def _ports(rule: Rule) -> Ports:
    if rule["IpProtocol"] == _ANY:
        return EVERY_PORT
    return rule.get("FromPort", 0), rule.get("ToPort", EVERY_PORT[1])
