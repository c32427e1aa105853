# SPDX-License-Identifier: Apache-2.0
"""From a schedule and costs to a timeline: check, compute, and add the reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain as flat

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.cost import Link, NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.simulate.deadlock import deadlock
from smdist.modelparallel.core.simulate.memory import held_bytes
from smdist.modelparallel.core.simulate.run import Run, run
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

    Sends are asynchronous: a rank computes on while its messages travel. Messages from one rank
    to another leave one after the other, each taking its bytes / bandwidth, and arrive the latency
    later. All values between two stages travel as one message. Two stages of one rank exchange at
    no cost.

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
    raise_all(
        flat(
            _wrong_lengths(per_rank, schedule.num_ranks, "rank"),
            _wrong_lengths(per_stage, schedule.num_stages, "stage"),
            _wrong_edges(edges, schedule.num_stages),
            _wrong_actions(schedule),
            _reduced_twice(reduce_seconds, stage_reduce_seconds),
        )
    )
    numbers = tables(schedule, stages, edges, link)
    raise_all(_repeated_actions(schedule, numbers.cells))
    times = run(numbers)
    done = [len(ends) for ends in times.ends]
    if done != [len(order) for order in schedule.orders]:
        raise deadlock(schedule, edges, done)
    during, peaks = held_bytes(schedule, numbers.rows, stages, edges, static_bytes)
    return Timeline(
        schedule=schedule,
        starts=tuple(map(tuple, times.starts)),
        ends=tuple(map(tuple, times.ends)),
        held_bytes=during,
        travel_seconds=tuple(times.travel_seconds),
        peaks=peaks,
        reductions=(
            *_rank_reductions(times, reduce_seconds),
            *_stage_reductions(schedule, times, stage_reduce_seconds),
        ),
    )


def _wrong_lengths(
    given: Mapping[str, Sequence[object]], count: int, of: str
) -> Iterator[OptionError]:
    for name, values in given.items():
        if len(values) != count and (values or name == "stages"):
            yield OptionError(
                f"{name} has {len(values)} entries",
                f"the schedule has {count} {of}s",
                f"Pass one entry for each {of}",
            )


def _wrong_edges(edges: Sequence[Edge], num_stages: int) -> Iterator[OptionError]:
    for edge in edges:
        if not 0 <= edge.source < edge.target < num_stages:
            yield OptionError(
                f"value {edge.value!r} goes from stage {edge.source} to stage {edge.target}",
                f"values flow from a stage to a later one of {num_stages}",
                "Place it so that no value goes back",
            )


def _wrong_actions(schedule: Schedule) -> Iterator[OptionError]:
    microbatches = range(schedule.num_microbatches)
    for rank, order in enumerate(schedule.orders):
        stages = set(schedule.stages_of[rank])
        for action in order:
            if action.stage not in stages or action.microbatch not in microbatches:
                yield OptionError(
                    f"rank {rank} does {action}",
                    f"it has stages {sorted(stages)} and microbatches 0 to {microbatches[-1]}",
                    "Order only these",
                )
                break


def _repeated_actions(schedule: Schedule, cells: Sequence[list[int]]) -> Iterator[OptionError]:
    """B and I of one microbatch count as the same."""
    for rank, numbers in enumerate(cells):
        if len(set(numbers)) < len(numbers):
            place = next(at for at, cell in enumerate(numbers) if cell in numbers[:at])
            yield OptionError(
                f"rank {rank} does {schedule.orders[rank][place]} again",
                "each microbatch goes through a stage once",
                "Order it once",
            )


def _reduced_twice(ranks: Sequence[float], stages: Sequence[float]) -> Iterator[OptionError]:
    if ranks and stages:
        yield OptionError(
            "reduce_seconds and stage_reduce_seconds are both given",
            "gradients are reduced once",
            "Pass seconds by rank or by stage",
        )


def _rank_reductions(times: Run, seconds: Sequence[float]) -> Iterator[Reduction]:
    for rank, takes in enumerate(seconds):
        if takes:
            start = times.ends[rank][-1] if times.ends[rank] else 0.0
            yield Reduction(rank=rank, stage=None, start=start, end=start + takes)


def _stage_reductions(
    schedule: Schedule, times: Run, seconds: Sequence[float]
) -> Iterator[Reduction]:
    if not any(seconds):
        return
    for rank, order in enumerate(schedule.orders):
        last = {
            action.stage: end
            for action, end in zip(order, times.ends[rank], strict=True)
            if action.do is Do.B or action.do is Do.W
        }
        free = 0.0
        for stage, end in sorted(last.items(), key=lambda item: item[1]):
            start, free = max(free, end), max(free, end) + seconds[stage]
            yield Reduction(rank=rank, stage=stage, start=start, end=free)
