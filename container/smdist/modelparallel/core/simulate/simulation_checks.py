# SPDX-License-Identifier: Apache-2.0
"""Checks before a simulation. A deadlock is found only by the simulation itself (deadlock.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Schedule


def faults(
    schedule: Schedule,
    edges: Sequence[Edge],
    per_rank: Mapping[str, Sequence[float]],
    per_stage: Mapping[str, Sequence[object]],
) -> Iterator[OptionError]:
    """Yield the faults that are visible without a simulation."""
    yield from _wrong_lengths(per_rank, schedule.num_ranks, "rank")
    yield from _wrong_lengths(per_stage, schedule.num_stages, "stage")
    yield from _wrong_edges(edges, schedule.num_stages)
    yield from _wrong_actions(schedule)
    if per_rank["reduce_seconds"] and per_stage["stage_reduce_seconds"]:
        yield OptionError(
            "reduce_seconds and stage_reduce_seconds are both given",
            "gradients are reduced once",
            "Pass seconds by rank or by stage",
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
                about=name,
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


def repeated(schedule: Schedule, cells: Sequence[Sequence[int]]) -> Iterator[OptionError]:
    """Yield faults of actions that a rank does twice; B and I of a microbatch count as the same."""
    for rank, numbers in enumerate(cells):
        if len(set(numbers)) < len(numbers):
            again = next(at for at, cell in enumerate(numbers) if cell in numbers[:at])
            yield OptionError(
                f"rank {rank} does {schedule.orders[rank][again]} again",
                "each microbatch goes through a stage once",
                "Order it once",
            )
