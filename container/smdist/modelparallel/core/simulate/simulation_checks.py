# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of a simulation; a deadlock is found by the simulation itself."""

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
    """Yield an error for each wrong argument that can be found without a simulation.

    Args:
        schedule: Schedule to simulate.
        edges: Values sent between stages.
        per_rank: Arguments of `simulate` with one entry for each rank, by their names.
        per_stage: Arguments of `simulate` with one entry for each stage, by their names.
    """
    yield from _wrong_lengths(per_rank, schedule.num_ranks, "rank")
    yield from _wrong_lengths(per_stage, schedule.num_stages, "stage")
    yield from _wrong_edges(edges, schedule.num_stages)
    yield from _wrong_actions(schedule)
    if per_rank["reduce_seconds"] and per_stage["stage_reduce_seconds"]:
        yield OptionError(
            "reduce_seconds and stage_reduce_seconds are both given",
            "gradients are summed once in a step, by rank or by stage",
            "Pass only one of the two",
            about="stage_reduce_seconds",
            kind="conflict",
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
                f"values are sent to later stages only, and the stages are 0 to {num_stages - 1}",
                "Place the units so that no stage needs a value of a later stage",
                about="edges",
            )


def _wrong_actions(schedule: Schedule) -> Iterator[OptionError]:
    microbatches = range(schedule.num_microbatches)
    for rank, order in enumerate(schedule.orders):
        stages = set(schedule.stages_of[rank])
        for action in order:
            if action.stage not in stages or action.microbatch not in microbatches:
                yield OptionError(
                    f"the order of rank {rank} contains {action}",
                    f"this rank has the stages {sorted(stages)} and the microbatches 0 to "
                    f"{microbatches[-1]}",
                    "Remove the action, or correct its stage and microbatch",
                    about=("orders", rank, str(action)),
                    kind="unknown_action",
                )
                break


def repeated(schedule: Schedule, cells: Sequence[Sequence[int]]) -> Iterator[OptionError]:
    """Yield an error for each rank that runs an action twice.

    A whole backward pass and its input gradients count as the same action.

    Args:
        schedule: Schedule to check.
        cells: For each rank, a number for each of its actions, in order. Only equal actions have
            equal numbers.
    """
    for rank, numbers in enumerate(cells):
        if len(set(numbers)) < len(numbers):
            again = next(at for at, cell in enumerate(numbers) if cell in numbers[:at])
            yield OptionError(
                f"the order of rank {rank} repeats {schedule.orders[rank][again]}",
                "each microbatch has one forward and one backward pass on a stage",
                "Remove the repeated action",
                about=("orders", rank, str(schedule.orders[rank][again])),
                kind="repeated_action",
            )
