# SPDX-License-Identifier: Apache-2.0
"""Length of a simulated step alone, for searches that simulate thousands of steps.

The numbers are those of `simulate`, by the same loop. What depends on the schedule alone is
computed once, and neither events nor memory are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from sagemaker_dist.errors import raise_all
from smdist.modelparallel.core.cost import Link, NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.simulate.deadlock import deadlock
from smdist.modelparallel.core.simulate.event_loop import run
from smdist.modelparallel.core.simulate.schedule_tables import (
    chain,
    seconds_by_row,
    sends_between,
    tables,
)
from smdist.modelparallel.core.simulate.simulation import no_cost
from smdist.modelparallel.core.simulate.simulation_checks import repeated


class StepEnds(NamedTuple):
    """Ends of a pipeline's work in a step, in seconds from its start.

    Attributes:
        pipeline_seconds: End of the last action.
        stages: For each rank, pairs of a stage and the end of its last backward pass, by this end.
    """

    pipeline_seconds: float
    stages: tuple[tuple[tuple[int, float], ...], ...]

    def step_seconds(self, reduce_seconds: Sequence[float]) -> float:
        """Return the seconds of the step with the sums of gradients over replicas.

        A stage's sum starts after its last backward pass; those of one rank run one after another.

        Args:
            reduce_seconds: Seconds of the sum, by stage.
        """
        step = self.pipeline_seconds
        for rank in self.stages:
            free = 0.0
            for stage, end in rank:
                free = max(free, end) + reduce_seconds[stage]
            step = max(step, free)
        return step


class StepClock:
    """Clock of steps of one schedule, in which each stage sends to the next one.

    Args:
        schedule: The schedule.

    Attributes:
        splits_backward: True if gradients of inputs and of weights are separate actions.

    Raises:
        OptionError: The schedule has an action twice, or a deadlock.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.splits_backward = schedule.splits_backward
        edges = chain(schedule.num_stages)
        self._tables = tables(schedule, [NodeCost()] * schedule.num_stages, edges, no_cost)
        raise_all(repeated(schedule, self._tables.cells))
        done = [len(ends) for ends in run(self._tables).ends]
        if done != [len(order) for order in schedule.orders]:
            raise deadlock(schedule, edges, done)
        self._last = [
            {
                action.stage: place
                for place, action in enumerate(order)
                if action.do is Do.B or action.do is Do.W
            }
            for order in schedule.orders
        ]

    def ends(
        self, stages: Sequence[NodeCost], sent_bytes: Sequence[int],
        link: Callable[[int, int], Link],
    ) -> StepEnds:  # fmt: skip
        """Return the ends of a step.

        Args:
            stages: Cost of each stage for one microbatch.
            sent_bytes: Bytes that each stage but the last sends to the next one.
            link: Function that returns the link from one rank of the pipeline to another.
        """
        edges = [
            Edge(value="", source=at, target=at + 1, num_bytes=size, has_gradient=True)
            for at, size in enumerate(sent_bytes)
        ]
        sends, num_channels = sends_between(self._schedule, edges, link)
        found = run(
            replace(
                self._tables, seconds=seconds_by_row(stages), sends=sends,
                num_channels=num_channels,
            )
        ).ends  # fmt: skip
        by_rank = (
            sorted(((stage, ends[at]) for stage, at in last.items()), key=lambda pair: pair[1])
            for last, ends in zip(self._last, found, strict=True)
        )
        return StepEnds(
            pipeline_seconds=max(ends[-1] for ends in found if ends),
            stages=tuple(map(tuple, by_rank)),
        )
