# SPDX-License-Identifier: Apache-2.0
"""Lower bounds on a pipeline's memory, which exclude pipelines that cannot fit in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.placement import placed_units
from smdist.modelparallel.core.planner.cost_samples import View

Ranks = tuple[int, ...]
_Size = tuple[int, bool]  # number of microbatches, True if captured at this size


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class ModelMemory:
    """Memory of the whole model at one microbatch size."""

    view: View
    state: StateBytes

    @cached_property
    def saved_bytes(self) -> int:
        """Bytes of activations that all nodes together keep for one microbatch."""
        nodes = self.view.graph.nodes
        return sum(self.view.costs.of(node.name).saved_bytes for node in nodes)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all weights, gradients, optimizer state, and one microbatch's activations."""
        graph = self.view.graph
        used = {name for node in graph.nodes for name in node.parameters}
        return self.saved_bytes + sum(self.state.of(graph.parameter[name]) for name in used)

    @cached_property
    def largest_bytes(self) -> int:
        """Bytes that the largest unit (undivided module) needs for one microbatch."""
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
        """(state bytes, activation bytes) of each node, in the order of execution.

        State is weights, gradients and optimizer state. A parameter counts at its first node only.
        """
        seen: set[str] = set()
        found = []
        for node in self.view.graph.nodes:
            fresh = [name for name in node.parameters if name not in seen]
            seen.update(fresh)
            state = sum(self.state.of(self.view.graph.parameter[name]) for name in fresh)
            found.append((state, self.view.costs.of(node.name).saved_bytes))
        return tuple(found)


_SLACK: Final = 1.05  # tolerance, because the nodes of a stage need not be consecutive


@dataclass(slots=True, kw_only=True)
class MemoryBounds:
    """Check whether pipelines can fit in memory, from the least memory that they can need.

    Pipelines that did not fit are remembered, so that larger ones can be excluded at once.

    Attributes:
        limit_bytes: Bytes that a rank may use.
        state: Bytes of weight, gradient and optimizer state for each parameter element.
    """

    limit_bytes: int
    state: StateBytes
    _model_memories: dict[_Size, ModelMemory] = field(default_factory=dict)
    _full: dict[tuple[_Size, Ranks], list[tuple[int, ...]]] = field(default_factory=dict)

    def least_bytes(self, view: View, num_ranks: int) -> int:
        """Return the bytes that the fullest rank needs at least.

        This is the larger of two numbers: the model's memory divided by the number of ranks, and
        the memory of the largest undivided module.

        Args:
            view: Graph and costs of one microbatch.
            num_ranks: Number of ranks of the pipeline.
        """
        memory = self._model_memory(view)
        return max(memory.total_bytes // num_ranks, memory.largest_bytes)

    def may_fit(self, view: View, num_ranks: int) -> bool:
        """Return True if `least_bytes` of this pipeline is within the limit.

        Args:
            view: Graph and costs of one microbatch.
            num_ranks: Number of ranks of the pipeline.
        """
        return self.least_bytes(view, num_ranks) <= self.limit_bytes

    def may_fit_if_divisible(self, view: View, in_flight: tuple[int, ...]) -> bool:
        """Return True if the model would fit in memory if each node could be divided at any place.

        One stage on each rank is assumed. Stages are filled one after another with the next nodes,
        each up to the limit. No other partition leaves less to the later stages.

        Args:
            view: Graph and costs of one microbatch.
            in_flight: Largest number of microbatches that each stage holds, by stage.
        """
        limit = self.limit_bytes * _SLACK
        stage, free = 0, limit
        for state, saved in self._model_memory(view).chain:
            rest = 1.0
            while (needs := (state + in_flight[stage] * saved) * rest) > free:
                rest -= free / (state + in_flight[stage] * saved)
                stage, free = stage + 1, limit
                if stage == len(in_flight):
                    return False
            free -= needs
        return True

    def needs_more_than_a_misfit(
        self, view: View, rank_of: Ranks, in_flight: Callable[[], tuple[int, ...]]
    ) -> bool:
        """Return True if a pipeline needs at least as much memory as another that did not fit.

        The other pipeline was passed to `record_misfit`. It has the same microbatch size and the
        same `rank_of`, and none of its stages holds more microbatches than the same stage here.

        Args:
            view: Graph and costs of one microbatch.
            rank_of: Rank of each stage.
            in_flight: Function that returns the largest number of microbatches that each stage
                holds.
        """
        known = self._full.get((_size(view), rank_of))
        if not known:
            return False
        return any(all(map(int.__ge__, in_flight(), less)) for less in known)

    def record_misfit(self, view: View, rank_of: Ranks, in_flight: tuple[int, ...]) -> None:
        """Record a pipeline for which no partition fits in memory.

        Args:
            view: Graph and costs of one microbatch.
            rank_of: Rank of each stage.
            in_flight: Largest number of microbatches that each stage holds, by stage.
        """
        self._full.setdefault((_size(view), rank_of), []).append(in_flight)

    def _model_memory(self, view: View) -> ModelMemory:
        key = _size(view)
        if key not in self._model_memories:
            self._model_memories[key] = ModelMemory(view=view, state=self.state)
        return self._model_memories[key]


def _size(view: View) -> _Size:
    """Return the key of a microbatch size: (number of microbatches, `view.is_exact`)."""
    return view.num_microbatches, view.is_exact
