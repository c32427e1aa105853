# SPDX-License-Identifier: Apache-2.0
"""Local search that improves a partition, for several stages on one rank and for tied parameters.

Dynamic programming, which makes the partition, cannot handle these two cases. In the first, memory
and time of a rank are sums over its stages, which need not be neighbours. In the second, stages
with the same parameter need not be neighbours either.

So single units (undivided modules) are moved to a neighbour stage while that improves the
partition. Then a unit that shares a parameter with a unit of another stage is moved to that stage,
if neither load nor memory grows.
"""

from __future__ import annotations

from collections.abc import Iterator

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.note import MOVED_UNIT, Note
from smdist.modelparallel.core.partition.dynamic_programming import SLACK
from smdist.modelparallel.core.partition.scoring import Scorer
from smdist.modelparallel.core.placement import Placement

MAX_TRIALS = 400
"""Largest number of partitions that one local search compares; each may need a simulation."""


def improve(scorer: Scorer, ends: tuple[int, ...]) -> tuple[int, ...]:
    """Return a better division into stages, found by a local search.

    Each step moves one module to a neighbour stage. The search ends when no step improves the
    score, or after many attempts.

    Args:
        scorer: Scorer that compares divisions into stages.
        ends: Division to improve: for each stage, the position after its last module.
    """
    best, trials, moved = scorer.score_cuts(ends), 0, True
    while moved and trials < MAX_TRIALS:
        moved = False
        for other in _neighbours(ends):
            trials += 1
            score = scorer.score_cuts(other)
            if score < best:
                ends, best, moved = other, score, True
                break
    return ends


def _neighbours(ends: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for at in range(len(ends) - 1):
        before = ends[at - 1] if at else 0
        for end in (ends[at] - 1, ends[at] + 1):
            if before < end < ends[at + 1]:
                yield (*ends[:at], end, *ends[at + 1 :])


def join_tied_units(
    scorer: Scorer, stage_of: dict[str, int]
) -> tuple[dict[str, int], tuple[Note, ...]]:
    """Move units to stages that hold the same tied parameter, where load and memory allow it.

    Args:
        scorer: Scorer that compares assignments of units to stages.
        stage_of: Stage of each unit, by the unit's name.

    Returns:
        New stage of each unit by name, and one note for each move.
    """
    notes: list[Note] = []
    found = True
    while found:
        found = False
        for name, stage, parameter in _moves(scorer, scorer.place(stage_of)):
            if _costs_nothing(scorer, stage_of, {**stage_of, name: stage}):
                text = (
                    f"{name} was moved from stage {stage_of[name]} to stage {stage}, which "
                    f"holds the same parameter {parameter}"
                )
                notes.append(Note(MOVED_UNIT, text, name))
                stage_of, found = {**stage_of, name: stage}, True
                break
    return stage_of, tuple(notes)


def _moves(scorer: Scorer, placement: Placement) -> Iterator[tuple[str, int, str]]:
    """Yield possible moves: (unit, new stage, tied parameter that the new stage holds already)."""
    for tie in placement.ties:
        for name in scorer.chain.names:
            if tie.parameter in scorer.graph.node[name].parameters:
                for stage in tie.stages:
                    if stage not in placement.stages[name]:
                        yield name, stage, tie.parameter


def _costs_nothing(scorer: Scorer, now: dict[str, int], then: dict[str, int]) -> bool:
    """Return True if a move saves copies of tied parameters, and load and memory do not grow.

    Args:
        scorer: Scorer that compares assignments of units to stages.
        now: Stage of each unit before the move, by the unit's name.
        then: Stage of each unit after the move, by the unit's name.
    """
    before = scorer.place(now)
    try:
        after = scorer.place(then)
    except OptionError:  # a value would be sent to an earlier stage, or a stage would be empty
        return False
    if _duplicate_bytes(scorer, after) >= _duplicate_bytes(scorer, before):
        return False
    old, new = scorer.score(before), scorer.score(after)
    return (
        new.excess_bytes <= old.excess_bytes
        and new.objective <= old.objective * SLACK
        and new.load <= old.load * SLACK
    )


def _duplicate_bytes(scorer: Scorer, placement: Placement) -> int:
    """Return the bytes of all copies of tied parameters, the first copy of each not included."""
    return sum(
        (len(tie.stages) - 1) * scorer.graph.parameter[tie.parameter].num_bytes
        for tie in placement.ties
    )
