# SPDX-License-Identifier: Apache-2.0
"""Partitions of a model for a candidate, from the partitioner or from the user's marks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.partition import Partition, assigned, partition
from smdist.modelparallel.core.partition.manual import stages_of_marks
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.cost_samples import Samples, View
from smdist.modelparallel.core.planner.problem import Problem
from smdist.modelparallel.core.schedule import Schedule, Shape, most_in_flight

_BY_MEMORY: Final = 1.0
_FELT: Final = 0.01  # least time of a message, relative to a stage's, for a second partition
_MANY: Final = 256  # units: with more, stages are balanced well anyway and partitions take seconds


class Cuts:
    """Partitions of one model, each computed once.

    At a size of microbatches that was not captured, the cuts of the smallest size are used, because
    the costs of units grow alike. The size that is finally chosen is captured, and cut for itself.
    """

    def __init__(self, problem: Problem, samples: Samples) -> None:
        self._problem, self._samples = problem, samples
        self._known: dict[tuple[object, ...], Partition] = {}

    def find(
        self, view: View, candidate: Candidate, schedule: Callable[[], Schedule], link: Link
    ) -> list[Partition]:
        """Return the partitions to simulate, without a limit of memory.

        One assumes that all communication is hidden, the other that none is; the simulation shows
        which is faster. If the user placed the units, there is only one partition.

        Raises:
            OptionError: There are more stages than units, or the user's stages are not a pipeline.
        """
        if not self._problem.auto_partition:
            return [self._by_hand(view, candidate)]
        in_flight = most_in_flight(schedule()) if self._weighs_memory else None
        cut = partial(self._cut, view, candidate, in_flight=in_flight, **self._weights)
        hidden = cut(link=Link())
        if len(hidden.stage_of) > _MANY or not _is_felt(link, hidden):
            return [hidden]
        exposed = cut(link=link)
        return [hidden] if exposed.stages == hidden.stages else [hidden, exposed]

    def within(
        self, view: View, candidate: Candidate, schedule: Schedule, device_bytes: int
    ) -> Partition:
        """Return the best partition that fits in `device_bytes` a rank, without receive buffers.

        Raises:
            OptionError: No such partition exists.
        """
        if not self._problem.auto_partition:
            return self._by_hand(view, candidate)
        in_flight = most_in_flight(schedule)
        limits = {"device_bytes": device_bytes, "in_flight": in_flight, **self._weights}
        return self._cut(view, candidate, **limits)

    def leanest(self, view: View, candidate: Candidate, schedule: Schedule) -> Partition:
        """Return the partition whose fullest rank holds the fewest bytes."""
        if not self._problem.auto_partition:
            return self._by_hand(view, candidate)
        in_flight = most_in_flight(schedule)
        return self._cut(view, candidate, in_flight=in_flight, memory_weight=_BY_MEMORY)

    def _by_hand(self, view: View, candidate: Candidate) -> Partition:
        stage_of = stages_of_marks(
            view.graph,
            self._problem.marks,
            num_stages=candidate.num_stages,
            default_partition=self._problem.default_partition,
        )
        solve = partial(assigned, view.graph, view.costs, stage_of)
        return self._once(solve, view, candidate)

    def _cut(self, view: View, candidate: Candidate, **options: Any) -> Partition:
        if view.is_exact or "device_bytes" in options:
            solve = partial(partition, view.graph, view.costs)
            return self._once(solve, view, candidate, **options)
        known = self._cut(self._samples.smallest, candidate, **options)
        solve = partial(assigned, view.graph, view.costs, known.stage_of)
        return self._once(solve, view, candidate, stages=known.stages)

    def _once(
        self, solve: Callable[..., Partition], view: View, candidate: Candidate, **options: Any
    ) -> Partition:
        rank_of = rank_of_stages(candidate)
        size = (view.num_microbatches, view.is_exact)
        key = (size, rank_of, *sorted(options.items(), key=lambda item: item[0]))
        if key not in self._known:
            options.pop("stages", None)
            self._known[key] = solve(
                num_stages=candidate.num_stages,
                rank_of=rank_of,
                state=self._problem.state,
                **options,
            )
        return self._known[key]

    @property
    def _weights(self) -> dict[str, Any]:
        problem = self._problem
        return {"memory_weight": problem.memory_weight, "optimize": problem.optimize}

    @property
    def _weighs_memory(self) -> bool:
        return bool(self._problem.memory_weight) or self._problem.optimize is not None


def _is_felt(link: Link, found: Partition) -> bool:
    edges = found.placement.edges
    longest = max((link.seconds(edge.num_bytes) for edge in edges), default=0.0)
    return longest > _FELT * max(found.loads)


def rank_of_stages(candidate: Candidate) -> tuple[int, ...]:
    """Return the rank of each stage."""
    shape = Shape(
        num_ranks=candidate.pipeline,
        num_microbatches=candidate.num_microbatches,
        virtual_stages=candidate.virtual_stages,
    )
    return candidate.kind.rank_of(shape)
