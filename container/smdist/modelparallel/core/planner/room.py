# SPDX-License-Identifier: Apache-2.0
"""Which candidates cannot fit in memory, found out without a partition for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.planner.samples import View

Ranks = tuple[int, ...]
_Size = tuple[int, bool]


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class Weight:
    """What one size of microbatches takes in all."""

    view: View
    state: StateBytes

    @cached_property
    def saved_bytes(self) -> int:
        """Kept of one microbatch between forward and backward, by all nodes."""
        nodes = self.view.graph.nodes
        return sum(self.view.costs.of(node.name).saved_bytes for node in nodes)

    @cached_property
    def total_bytes(self) -> int:
        """With all parameters: what ranks hold together at least."""
        graph = self.view.graph
        used = {name for node in graph.nodes for name in node.parameters}
        return self.saved_bytes + sum(self.state.of(graph.parameter[name]) for name in used)

    @cached_property
    def largest_bytes(self) -> int:
        """What the largest unit takes by itself."""
        graph, costs = self.view.graph, self.view.costs
        return max(
            (
                sum(self.state.of(graph.parameter[name]) for name in unit.parameters)
                + costs.of(unit.name).saved_bytes
                + costs.of(unit.name).workspace_bytes
                for unit in placed_units(graph)
            ),
            default=0,
        )

    @cached_property
    def chain(self) -> tuple[tuple[int, int], ...]:
        """Bytes of state and bytes saved of each node; a parameter counts where it is first."""
        seen: set[str] = set()
        found = []
        for node in self.view.graph.nodes:
            fresh = [name for name in node.parameters if name not in seen]
            seen.update(fresh)
            state = sum(self.state.of(self.view.graph.parameter[name]) for name in fresh)
            found.append((state, self.view.costs.of(node.name).saved_bytes))
        return tuple(found)


_SLACK: Final = 1.05  # nodes are not cut exactly in the order of execution


@dataclass(slots=True, kw_only=True)
class Room:
    """What did not fit, so that what needs more of everything is not tried."""

    limit_bytes: int
    state: StateBytes
    _weights: dict[_Size, Weight] = field(default_factory=dict)
    _full: dict[tuple[_Size, Ranks], list[tuple[int, ...]]] = field(default_factory=dict)

    def least_bytes(self, view: View, num_ranks: int) -> int:
        """What the fullest rank holds at least: its part of the whole, and the largest unit."""
        weight = self._weight(view)
        return max(weight.total_bytes // num_ranks, weight.largest_bytes)

    def may_fit(self, view: View, num_ranks: int) -> bool:
        """Whether sums allow it."""
        return self.least_bytes(view, num_ranks) <= self.limit_bytes

    def may_fit_cut_anywhere(self, view: View, in_flight: tuple[int, ...]) -> bool:
        """Whether runs of nodes fit, one stage a rank, if even nodes could be cut.

        Each stage takes from the front of what is left as much as it holds: no other way of
        cutting leaves less to the stages after it.
        """
        limit = self.limit_bytes * _SLACK
        stage, room = 0, limit
        for state, saved in self._weight(view).chain:
            left = 1.0
            while (needs := (state + in_flight[stage] * saved) * left) > room:
                left -= room / (state + in_flight[stage] * saved)
                stage, room = stage + 1, limit
                if stage == len(in_flight):
                    return False
            room -= needs
        return True

    def is_worse(
        self, view: View, rank_of: Ranks, in_flight: Callable[[], tuple[int, ...]]
    ) -> bool:
        """Whether every stage keeps at least what it kept in a pipeline that did not fit.

        Of microbatches of the same size: others have other workspaces.
        """
        known = self._full.get((_size(view), rank_of))
        if not known:
            return False
        return any(all(map(int.__ge__, in_flight(), less)) for less in known)

    def did_not_fit(self, view: View, rank_of: Ranks, in_flight: tuple[int, ...]) -> None:
        """Remember a pipeline that no partition of it fits."""
        self._full.setdefault((_size(view), rank_of), []).append(in_flight)

    def _weight(self, view: View) -> Weight:
        key = _size(view)
        if key not in self._weights:
            self._weights[key] = Weight(view=view, state=self.state)
        return self._weights[key]


def _size(view: View) -> _Size:
    """Of the microbatches, and whether it was captured."""
    return view.num_microbatches, view.is_exact
