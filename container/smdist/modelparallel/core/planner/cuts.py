# SPDX-License-Identifier: Apache-2.0
"""Divisions of a model into stages, computed by the planner or chosen by the user."""

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
_NOTICEABLE: Final = 0.01  # a message above 1 % of a stage's time justifies a second partition
_MANY: Final = (
    256  # units; with more, stages are balanced in any case, and a partition takes seconds
)


class Cuts:
    """Partitions of one model into stages for the planner's candidates, each computed once.

    A candidate is a combination of parallel degrees, schedule and number of microbatches.
    """

    def __init__(self, problem: Problem, samples: Samples) -> None:
        self._problem, self._samples = problem, samples
        self._known: dict[tuple[object, ...], Partition] = {}

    def find(
        self, view: View, candidate: Candidate, schedule: Callable[[], Schedule], link: Link
    ) -> list[Partition]:
        """Return the partitions to simulate, computed without a memory limit.

        The first partition is the best one if messages between stages took no time. The second is
        the best one with their real time. There is no second partition if it equals the first, or
        if messages are short compared with the stages.

        If the user assigned modules to stages, these stages are the only partition.

        Args:
            view: Graph and costs of one microbatch.
            candidate: Degrees, schedule and number of microbatches.
            schedule: Function that returns the schedule of the candidate.
            link: Slowest link between neighbour ranks of the pipeline.

        Raises:
            OptionError: There are more stages than modules, or a stage that the user marked would
                send a value to an earlier stage.
        """
        if not self._problem.auto_partition:
            return [self._marked_partition(view, candidate)]
        in_flight = most_in_flight(schedule()) if self._weighs_memory else None
        cut = partial(self._cut, view, candidate, in_flight=in_flight, **self._weights)
        hidden = cut(link=Link())
        if len(hidden.stage_of) > _MANY or not _is_noticeable(link, hidden):
            return [hidden]
        exposed = cut(link=link)
        return [hidden] if exposed.stages == hidden.stages else [hidden, exposed]

    def within(
        self, view: View, candidate: Candidate, schedule: Schedule, device_bytes: int
    ) -> Partition:
        """Return the best partition that fits in `device_bytes` on each rank.

        Buffers for received messages are not counted. If the user marked the stages, they are
        returned even if they do not fit.

        Args:
            view: Graph and costs of one microbatch.
            candidate: Degrees, schedule and number of microbatches.
            schedule: Schedule of the candidate.
            device_bytes: Bytes that a rank may hold.

        Raises:
            OptionError: No such partition exists.
        """
        if not self._problem.auto_partition:
            return self._marked_partition(view, candidate)
        in_flight = most_in_flight(schedule)
        limits = {"device_bytes": device_bytes, "in_flight": in_flight, **self._weights}
        return self._cut(view, candidate, **limits)

    def leanest(self, view: View, candidate: Candidate, schedule: Schedule) -> Partition:
        """Return the partition whose fullest rank holds the fewest bytes.

        If the user marked the stages, they are returned instead.

        Args:
            view: Graph and costs of one microbatch.
            candidate: Degrees, schedule and number of microbatches.
            schedule: Schedule of the candidate.
        """
        if not self._problem.auto_partition:
            return self._marked_partition(view, candidate)
        in_flight = most_in_flight(schedule)
        return self._cut(view, candidate, in_flight=in_flight, memory_weight=_BY_MEMORY)

    def _marked_partition(self, view: View, candidate: Candidate) -> Partition:
        stage_of = stages_of_marks(
            view.graph,
            self._problem.marks,
            num_stages=candidate.num_stages,
            default_partition=self._problem.default_partition,
        )
        solve = partial(assigned, view.graph, view.costs, stage_of)
        return self._cached(solve, view, candidate)

    def _cut(self, view: View, candidate: Candidate, **options: Any) -> Partition:
        if view.is_exact or "device_bytes" in options:
            solve = partial(partition, view.graph, view.costs)
            return self._cached(solve, view, candidate, **options)
        known = self._cut(self._samples.smallest, candidate, **options)
        solve = partial(assigned, view.graph, view.costs, known.stage_of)
        return self._cached(solve, view, candidate, stages=known.stages)

    def _cached(
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


def _is_noticeable(link: Link, found: Partition) -> bool:
    """Return True if the longest message takes more than 1 % of the slowest stage's time.

    Args:
        link: Link on which messages are sent.
        found: Partition with the values sent between stages.
    """
    edges = found.placement.edges
    longest = max((link.seconds(edge.num_bytes) for edge in edges), default=0.0)
    return longest > _NOTICEABLE * max(found.loads)


def rank_of_stages(candidate: Candidate) -> tuple[int, ...]:
    """Return the rank of each stage of a candidate, by stage."""
    shape = Shape(
        num_ranks=candidate.pipeline,
        num_microbatches=candidate.num_microbatches,
        virtual_stages=candidate.virtual_stages,
    )
    return candidate.kind.rank_of(shape)
