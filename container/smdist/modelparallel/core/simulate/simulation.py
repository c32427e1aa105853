# SPDX-License-Identifier: Apache-2.0
"""From a schedule and costs to a timeline: check, compute, and add the reductions.

Sends are asynchronous: a rank computes on while its messages travel. Messages from one rank to
another leave one after the other, each taking its bytes / bandwidth, and arrive the latency later.
All values between two stages travel as one message, which takes as long as one after the other.
Two stages of one rank exchange at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sagemaker_dist.errors import raise_all
from smdist.modelparallel.core.cost import Link, NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.simulate.deadlock import deadlock
from smdist.modelparallel.core.simulate.faults import faults, repeated
from smdist.modelparallel.core.simulate.memory import held_bytes
from smdist.modelparallel.core.simulate.run import run
from smdist.modelparallel.core.simulate.tables import chain, tables
from smdist.modelparallel.core.simulate.timeline import Reduction, Timeline


def no_cost(_rank: int, _other: int) -> Link:
    """Joins all ranks by links on which messages take no time."""
    return Link()


def simulate(
    schedule: Schedule,
    stages: Sequence[NodeCost],
    *,
    edges: Sequence[Edge] = (),
    link: Callable[[int, int], Link] = no_cost,
    static_bytes: Sequence[int] = (),
    reduce_seconds: Sequence[float] = (),
    stage_reduce_seconds: Sequence[float] = (),
) -> Timeline:
    """One step of a pipeline, in time linear in its actions and messages.

    Args:
        schedule: Whose orders are kept to, action by action.
        stages: What each stage costs for one microbatch.
        edges: What flows between stages; by default nothing but the order, from each to the next.
        link: Joins two ranks of the pipeline, the sender first.
        static_bytes: What each rank holds all the time; by default nothing.
        reduce_seconds: Of each rank's gradients across replicas, once its last action is done.
        stage_reduce_seconds: Instead, of each stage's gradients: starts as soon as the stage's
            last backward is done, while the rank computes on; those of one rank queue up.

    Raises:
        OptionError: Lengths do not agree; an edge leads to the same stage or an earlier one; or
            an order waits for itself, with the rank and the action at which it does.
    """
    edges = edges or chain(schedule.num_stages)
    static_bytes = static_bytes or (0,) * schedule.num_ranks
    per_rank = {"static_bytes": static_bytes, "reduce_seconds": reduce_seconds}
    per_stage = {"stages": stages, "stage_reduce_seconds": stage_reduce_seconds}
    raise_all(faults(schedule, edges, per_rank, per_stage))
    pipeline = _pipeline(schedule, stages, edges, link, static_bytes)
    by_rank = _rank_reductions(pipeline, reduce_seconds)
    by_stage = _stage_reductions(pipeline, stage_reduce_seconds)
    return replace(pipeline, reductions=(*by_rank, *by_stage))


def _pipeline(
    schedule: Schedule,
    stages: Sequence[NodeCost],
    edges: Sequence[Edge],
    link: Callable[[int, int], Link],
    static_bytes: Sequence[int],
) -> Timeline:
    """The step without its reductions."""
    numbers = tables(schedule, stages, edges, link)
    raise_all(repeated(schedule, numbers.cells))
    times = run(numbers)
    done = [len(ends) for ends in times.ends]
    if done != [len(order) for order in schedule.orders]:
        raise deadlock(schedule, edges, done)
    held, peaks = held_bytes(schedule, numbers.rows, stages, edges, static_bytes)
    return Timeline(
        schedule=schedule,
        starts=tuple(map(tuple, times.starts)),
        ends=tuple(map(tuple, times.ends)),
        held_bytes=held,
        travel_seconds=tuple(times.travel_seconds),
        peaks=peaks,
    )


def _rank_reductions(pipeline: Timeline, seconds: Sequence[float]) -> Iterator[Reduction]:
    """Of all stages of a rank, after its last action."""
    for rank, takes in enumerate(seconds):
        if takes:
            start = pipeline.ends[rank][-1] if pipeline.ends[rank] else 0.0
            yield Reduction(rank=rank, stage=None, start=start, end=start + takes)


def _stage_reductions(pipeline: Timeline, seconds: Sequence[float]) -> Iterator[Reduction]:
    """Of each stage after its last backward, one after the other on a rank."""
    if not any(seconds):
        return
    for rank, order in enumerate(pipeline.schedule.orders):
        last = {
            action.stage: end
            for action, end in zip(order, pipeline.ends[rank], strict=True)
            if action.do is Do.B or action.do is Do.W
        }
        free = 0.0
        for stage, end in sorted(last.items(), key=lambda item: item[1]):
            start, free = max(free, end), max(free, end) + seconds[stage]
            yield Reduction(rank=rank, stage=stage, start=start, end=free)
