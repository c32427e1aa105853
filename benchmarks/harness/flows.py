# SPDX-License-Identifier: Apache-2.0
"""A link on which each TCP flow has a rate of its own, below the link's: a script for `tc -batch`.

Every flow to another host has a class of `tc htb` below the link's class. It is found by
its destination and by six bits of the port of whoever dialled; the other port is the same
for all flows. A host dials those with lower numbers, as ranks and `goodput()` do. Two
flows in 64 classes may meet in one, and then share its rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_CLASSES = 64
# Bits 1 to 6, since Linux gives most sockets that connect an even port; the header's second
# word after 20 bytes of IP is the ports, source first.
_SOURCE_PORT, _DESTINATION_PORT = "0x007e0000", "0x0000007e"
_LINK, _OTHERS = "1:1", "1:2"
# A class may always send at its rate, and at the flow's while the link has room. The quantum
# is what one class sends before it is the next one's turn: a packet of segmentation offload.
_SHARE = "rate 64kbit burst 2kb quantum 65536"
_QUEUE = "bfifo limit 1mb"


def flow_limits(
    device: str, rate: str, flow_rate: str, own: int, addresses: Mapping[int, str]
) -> Iterator[str]:
    """For what host `own` sends to the other hosts, whose `addresses` are by number."""
    yield f"qdisc add dev {device} root handle 1: htb default 2"
    yield f"class add dev {device} parent 1: classid {_LINK} htb rate {rate} burst 256kb"
    yield from _leaf(device, _OTHERS, rate)
    for number, address in addresses.items():
        if number != own:
            port = _SOURCE_PORT if number < own else _DESTINATION_PORT
            yield from _destination(device, number + 1, address, port, flow_rate)


def _destination(device: str, table: int, address: str, port: str, rate: str) -> Iterator[str]:
    add = f"filter add dev {device} parent 1: protocol ip prio 1"
    yield f"{add} handle {table:x}: u32 divisor {_CLASSES}"
    yield f"{add} u32 ht 800: match ip dst {address} hashkey mask {port} at 20 link {table:x}:"
    for bucket in range(_CLASSES):
        name = f"1:{table * _CLASSES + bucket:x}"
        yield from _leaf(device, name, rate)
        yield f"{add} u32 ht {table:x}:{bucket:x} match u32 0 0 classid {name}"


def _leaf(device: str, name: str, rate: str) -> Iterator[str]:
    most = f"ceil {rate} cburst 128kb"
    yield f"class add dev {device} parent {_LINK} classid {name} htb {_SHARE} {most}"
    yield f"qdisc add dev {device} parent {name} {_QUEUE}"
