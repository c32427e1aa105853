# SPDX-License-Identifier: Apache-2.0
"""Local search that improves a partition: several stages on one rank, and tied parameters.

Dynamic programming sees neither. Memory and time of a rank are sums over its stages, which need not
be neighbours. So cuts are moved by one unit at a time while that improves the partition. If a unit
shares a parameter with a unit of another stage, it is moved to that stage if this costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.note import MOVED_UNIT, Note
from smdist.modelparallel.core.partition.dynamic_programming import SLACK
from smdist.modelparallel.core.partition.scoring import Judge
from smdist.modelparallel.core.placement import Placement

MAX_TRIALS = 400
"""Largest number of scores in one local search; each may need a simulation."""


def improve(judge: Judge, ends: tuple[int, ...]) -> tuple[int, ...]:
    """Move cuts by one unit, taking the first improvement each time, until no move improves."""
    best, trials, moved = judge.score_cuts(ends), 0, True
    while moved and trials < MAX_TRIALS:
        moved = False
        for other in _neighbours(ends):
            trials += 1
            score = judge.score_cuts(other)
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


def join_ties(judge: Judge, stage_of: dict[str, int]) -> tuple[dict[str, int], tuple[Note, ...]]:
    """Move units to stages that hold their tied parameter, if it costs nothing; note each move."""
    notes: list[Note] = []
    found = True
    while found:
        found = False
        for name, stage, parameter in _moves(judge, judge.place(stage_of)):
            if _is_free(judge, stage_of, {**stage_of, name: stage}):
                moved = f"{name} moved from stage {stage_of[name]} to {stage}"
                notes.append(Note(MOVED_UNIT, f"{moved}, where {parameter} is too", name))
                stage_of, found = {**stage_of, name: stage}, True
                break
    return stage_of, tuple(notes)


def _moves(judge: Judge, placement: Placement) -> Iterator[tuple[str, int, str]]:
    for tie in placement.ties:
        for name in judge.chain.names:
            if tie.parameter in judge.graph.node[name].parameters:
                for stage in tie.stages:
                    if stage not in placement.stages[name]:
                        yield name, stage, tie.parameter


def _is_free(judge: Judge, now: dict[str, int], then: dict[str, int]) -> bool:
    before = judge.place(now)
    try:
        after = judge.place(then)
    except OptionError:  # a value would go back, or a stage would be empty
        return False
    if _held_twice(judge, after) >= _held_twice(judge, before):
        return False
    old, new = judge.score(before), judge.score(after)
    return (
        new.excess_bytes <= old.excess_bytes
        and new.price <= old.price * SLACK
        and new.load <= old.load * SLACK
    )


def _held_twice(judge: Judge, placement: Placement) -> int:
    return sum(
        (len(tie.stages) - 1) * judge.graph.parameter[tie.parameter].num_bytes
        for tie in placement.ties
    )
