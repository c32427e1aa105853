# SPDX-License-Identifier: Apache-2.0
"""Memory of activations that several nodes of a graph keep for the backward pass.

    ReLU ─> r ─> Linear      Both nodes keep r. The costs count its bytes at the ReLU only. If both
                             are on one stage, r is in memory once. If they are on different stages,
                             each stage holds a copy, and the Linear's stage needs these bytes too.

For two stages of the same rank, such a value counts twice, although the rank may hold it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedValue:
    """Activation that several nodes keep for the backward pass.

    Attributes:
        first: Name of the node whose saved bytes include the value.
        others: Names of the other nodes that keep the value.
        num_bytes: Bytes of the value, at most the saved bytes of the first node.
    """

    first: str
    others: tuple[str, ...]
    num_bytes: int


def shared_values(graph: Graph, costs: Costs) -> Mapping[str, SharedValue]:
    """Return the activations that more than one node keeps for the backward pass.

    The key is the name of the activation in the graph.
    """
    keepers: dict[str, list[str]] = {}
    for node in graph.nodes:
        for value in costs.of(node.name).keeps:
            keepers.setdefault(value, []).append(node.name)
    sizes = {value.name: value.num_bytes for node in graph.nodes for value in node.writes}
    uncounted: dict[str, int] = {}  # bytes of a node's saved values without its shared ones
    found = {}
    for value, (first, *others) in keepers.items():
        if others:
            remaining = uncounted.get(first, costs.of(first).saved_bytes)
            num_bytes = min(sizes[value], remaining)
            uncounted[first] = remaining - num_bytes
            found[value] = SharedValue(first=first, others=tuple(others), num_bytes=num_bytes)
    return found


class SharedActivations:
    """Counter of activations that a stage keeps, but that the costs of its nodes do not include.

    If several nodes keep the same activation, only one node's cost includes its bytes. If that node
    is on another stage, the bytes are counted here.

    Attributes:
        num_bytes: Bytes of all activations that are counted here.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._counted_here: set[str] = set()
        self._counted_elsewhere: dict[str, int] = {}

    def add(self, counted_here: Mapping[str, int], counted_elsewhere: Mapping[str, int]) -> None:
        """Add nodes to the stage, and update `num_bytes`.

        Args:
            counted_here: Bytes of shared activations that the costs of these nodes include, by
                name.
            counted_elsewhere: Bytes of shared activations that these nodes keep, but that their
                costs do not include, by name.
        """
        for value in counted_here.keys() - self._counted_here:
            self._counted_here.add(value)
            self.num_bytes -= self._counted_elsewhere.pop(value, 0)
        for value, num_bytes in counted_elsewhere.items():
            if value not in self._counted_here and value not in self._counted_elsewhere:
                self._counted_elsewhere[value] = num_bytes
                self.num_bytes += num_bytes
