# SPDX-License-Identifier: Apache-2.0
"""Activations that several nodes keep for the backward pass: each stage that keeps one holds it.

    ReLU ─> r ─> Linear      both keep r, and it counts at the ReLU. On one stage r is there once;
                             with a cut between them both stages hold it, the second as received.

Two stages of one rank count such a value twice, though they may share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Value that more than one node keeps.

    Attributes:
        first: Name of the node whose saved bytes include the value.
        others: Names of the other nodes that keep the value.
        num_bytes: Bytes of the value, at most the saved bytes of the first node.
    """

    first: str
    others: tuple[str, ...]
    num_bytes: int


def common_values(graph: Graph, costs: Costs) -> Mapping[str, Common]:
    """Return the values that more than one node keeps, by name."""
    keepers: dict[str, list[str]] = {}
    for node in graph.nodes:
        for value in costs.of(node.name).keeps:
            keepers.setdefault(value, []).append(node.name)
    sizes = {value.name: value.num_bytes for node in graph.nodes for value in node.writes}
    left: dict[str, int] = {}
    found = {}
    for value, (first, *others) in keepers.items():
        if others:
            room = left.get(first, costs.of(first).saved_bytes)
            num_bytes = min(sizes[value], room)
            left[first] = room - num_bytes
            found[value] = Common(first=first, others=tuple(others), num_bytes=num_bytes)
    return found


class SharedActivations:
    """Bytes that a growing stage keeps of values which count at nodes of other stages.

    Attributes:
        num_bytes: Bytes of all these values.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._counted: set[str] = set()
        self._again: dict[str, int] = {}

    def add(self, counted: Mapping[str, int], kept: Mapping[str, int]) -> None:
        """Add nodes to the stage.

        Args:
            counted: Bytes of the shared values that are in the saved bytes of these nodes.
            kept: Bytes of the values that these nodes keep and that count at other nodes.
        """
        for value in counted.keys() - self._counted:
            self._counted.add(value)
            self.num_bytes -= self._again.pop(value, 0)
        for value, num_bytes in kept.items():
            if value not in self._counted and value not in self._again:
                self._again[value] = num_bytes
                self.num_bytes += num_bytes
