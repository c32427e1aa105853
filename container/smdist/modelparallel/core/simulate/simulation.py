# SPDX-License-Identifier: Apache-2.0
"""Simulation of one step: computes a timeline from a schedule and costs.

Sends are asynchronous: a rank computes while its messages are sent. Messages from one rank to
another are sent one after another. A message takes bytes / bandwidth seconds, and arrives after the
latency of the link.
All values from one stage to another are simulated as one message of the same total size. Messages
between two stages of one rank take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from sagemaker_dist.errors import raise_all
from smdist.modelparallel.core.cost import Link, NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.simulate.deadlock import deadlock
from smdist.modelparallel.core.simulate.event_loop import run
from smdist.modelparallel.core.simulate.memory_timeline import held_bytes
from smdist.modelparallel.core.simulate.schedule_tables import chain, tables
from smdist.modelparallel.core.simulate.simulation_checks import faults, repeated
from smdist.modelparallel.core.simulate.timeline import Reduction, Timeline


def no_cost(_rank: int, _other: int) -> Link:
    """Return a link on which messages take no time; the arguments are ignored."""
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
    """Simulate one training step of a pipeline.

    Args:
        schedule: Order of actions of each rank.
        stages: Cost of each stage for one microbatch.
        edges: Values sent between stages; by default 0 bytes from each stage to the next.
        link: Function that returns the link from one rank of the pipeline to another. By default,
            messages take no time.
        static_bytes: Bytes that each rank holds all the time; the default is 0.
        reduce_seconds: Seconds to sum each rank's gradients over replicas. The sum starts after the
            rank's last action.
        stage_reduce_seconds: Seconds to sum each stage's gradients over replicas, instead of
            `reduce_seconds`. The sum starts after the stage's last backward pass, while the rank
            continues to compute; sums of one rank run one after another.

    Returns:
        Times and memory of all actions, and the times of the sums of gradients.

    Raises:
        OptionError: A list has a wrong length, a value would be sent to an earlier stage, or the
            schedule has a deadlock; the error names its ranks and actions.
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
    """Return the simulated timeline of all actions of a step, without all-reduces of gradients."""
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
    """Yield the time in which each rank sums its gradients over replicas.

    The sum starts after the rank's last action.

    Args:
        pipeline: Timeline of the step's actions.
        seconds: Seconds of the sum, by rank; 0 for no sum.
    """
    for rank, takes in enumerate(seconds):
        if takes:
            start = pipeline.ends[rank][-1] if pipeline.ends[rank] else 0.0
            yield Reduction(rank=rank, stage=None, start=start, end=start + takes)


def _stage_reductions(pipeline: Timeline, seconds: Sequence[float]) -> Iterator[Reduction]:
    """Yield the time in which the gradients of each stage are summed over replicas.

    The sum starts after the stage's last backward pass. The sums of one rank run one after another.

    Args:
        pipeline: Timeline of the step's actions.
        seconds: Seconds of the sum, by stage; empty for no sums.
    """
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
