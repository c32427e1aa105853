# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on memory, which exclude candidates without a partition of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.planner.cost_samples import View

Ranks = tuple[int, ...]
_Size = tuple[int, bool]


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class Weight:
    """Memory of the whole model at one size of microbatches."""

    view: View
    state: StateBytes

    @cached_property
    def saved_bytes(self) -> int:
        """Bytes of one microbatch that all nodes keep from forward to backward."""
        nodes = self.view.graph.nodes
        return sum(self.view.costs.of(node.name).saved_bytes for node in nodes)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all parameters with state, plus saved bytes: the least for all ranks."""
        graph = self.view.graph
        used = {name for node in graph.nodes for name in node.parameters}
        return self.saved_bytes + sum(self.state.of(graph.parameter[name]) for name in used)

    @cached_property
    def largest_bytes(self) -> int:
        """Bytes that the largest unit needs alone."""
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
        """State bytes and saved bytes of each node; a parameter counts at its first node."""
        seen: set[str] = set()
        found = []
        for node in self.view.graph.nodes:
            fresh = [name for name in node.parameters if name not in seen]
            seen.update(fresh)
            state = sum(self.state.of(self.view.graph.parameter[name]) for name in fresh)
            found.append((state, self.view.costs.of(node.name).saved_bytes))
        return tuple(found)


_SLACK: Final = 1.05  # tolerance: stages do not follow the order of nodes exactly


@dataclass(slots=True, kw_only=True)
class Room:
    """Memory limit, and pipelines that exceeded it, so that larger pipelines are skipped."""

    limit_bytes: int
    state: StateBytes
    _weights: dict[_Size, Weight] = field(default_factory=dict)
    _full: dict[tuple[_Size, Ranks], list[tuple[int, ...]]] = field(default_factory=dict)

    def least_bytes(self, view: View, num_ranks: int) -> int:
        """Return a lower bound on the fullest rank's bytes: its even share, or the largest unit."""
        weight = self._weight(view)
        return max(weight.total_bytes // num_ranks, weight.largest_bytes)

    def may_fit(self, view: View, num_ranks: int) -> bool:
        """Tell whether the candidate may fit in memory, judged by sums."""
        return self.least_bytes(view, num_ranks) <= self.limit_bytes

    def may_fit_cut_anywhere(self, view: View, in_flight: tuple[int, ...]) -> bool:
        """Tell whether runs of nodes would fit, one stage a rank, if nodes could be cut.

        Each stage takes as many of the remaining nodes as fit, from the front: no other cut leaves
        less to the later stages.
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
        """Tell whether every stage keeps at least as much as in a pipeline that did not fit.

        Only pipelines with the same size of microbatch are compared, because workspaces depend on
        the size.
        """
        known = self._full.get((_size(view), rank_of))
        if not known:
            return False
        return any(all(map(int.__ge__, in_flight(), less)) for less in known)

    def did_not_fit(self, view: View, rank_of: Ranks, in_flight: tuple[int, ...]) -> None:
        """Record a pipeline for which no partition fits."""
        self._full.setdefault((_size(view), rank_of), []).append(in_flight)

    def _weight(self, view: View) -> Weight:
        key = _size(view)
        if key not in self._weights:
            self._weights[key] = Weight(view=view, state=self.state)
        return self._weights[key]


def _size(view: View) -> _Size:
    """Return the size of the microbatches, and True if it was captured."""
    return view.num_microbatches, view.is_exact
