# SPDX-License-Identifier: Apache-2.0
"""Script for `tc -batch` that limits each TCP flow on a link to a rate below the link's.

Every flow to another host has a class of `tc htb` below the link's class. The filter selects
it by its destination and by six bits of the connecting side's port; the other port is the same
for all flows. A host connects to those with lower numbers, as ranks and `goodput()` do. Two
flows in the 64 classes may fall into one, and then share its rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

_CLASSES = 64
# Bits 1 to 6, because Linux gives most connecting sockets an even port. The header's second word
# after 20 bytes of IP holds the ports, source first.
_SOURCE_PORT, _DESTINATION_PORT = "0x007e0000", "0x0000007e"
_LINK, _OTHERS = "1:1", "1:2"
# A class may always send at its rate, and at the flow's rate while the link has room. The quantum
# is the number of bytes a class sends in its turn: one packet of segmentation offload.
_SHARE = "rate 64kbit burst 2kb quantum 65536"
_QUEUE = "bfifo limit 1mb"


def flow_limits(
    device: str, rate: str, flow_rate: str, own: int, addresses: Mapping[int, str]
) -> Iterator[str]:
    """Yield commands that limit flows from host `own` to the others; `addresses` are by number."""
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
