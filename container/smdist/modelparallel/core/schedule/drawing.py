# SPDX-License-Identifier: Apache-2.0
"""Drawings of schedules as text: `draw` writes them, `parse_drawing` reads them.

    rank 0  F0 F1       B0===    B1===
    rank 1     F0 B0=== F1 B1===

Time runs to the right. F is a forward pass, and B a backward pass of twice the width. I and W are
the halves of a split backward pass: input gradients and weight gradients. The number is the
microbatch. With two stages on each rank, a line begins with the stages, and actions of the second
stage have small letters:

    rank 0 (0 3)  F0 F1 F2 f0 i0 w0
    rank 1 (1 2)     F0 f0 F1 f1 i0 w0

With more stages on each rank, every action begins with its stage: `2F0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.dependencies import Dependencies, run

COLUMNS: Mapping[Do, int] = MappingProxyType({Do.F: 1, Do.B: 2, Do.I: 1, Do.W: 1})
Labels = Mapping[Action, str]
_LINE = re.compile(r"^ *rank (\d+) *(?:\(([\d ]+)\))?  (.*)$", re.MULTILINE)
_CELL = re.compile(r"(\d*)([FBIWfbiw])(\d+)=*")


def ends_in_columns(schedule: Schedule, columns: Mapping[Do, int] = COLUMNS) -> list[list[int]]:
    """Return the column at which each action ends in a drawing.

    Each action begins as soon as its inputs are available. Messages take no time.

    Args:
        schedule: Schedule to draw.
        columns: Width of each kind of action in columns.

    Returns:
        For each rank, the ends of its actions in their order. An action in columns 0 and 1 ends at
        column 2.
    """
    waits = Dependencies(schedule).waits
    ends: list[list[int]] = [[] for _ in schedule.orders]
    for rank, index in run(waits).order:
        begins = [ends[source][number - 1] for source, number in waits[rank][index]]
        begin = max(begins + ends[rank][-1:], default=0)
        ends[rank].append(begin + columns[schedule.orders[rank][index].do])
    return ends


def draw(schedule: Schedule) -> str:
    """Return the drawing of a schedule, one line for each rank.

    The schedule must be one that `check_schedule` accepts.
    """
    labels = {
        action: _label(action, own)
        for order, own in zip(schedule.orders, schedule.stages_of, strict=True)
        for action in order
    }
    width = 1 + max(map(len, labels.values()))
    rows = zip(schedule.orders, ends_in_columns(schedule), strict=True)
    return "\n".join(
        f"{_line_start(schedule, rank)}  {_line(order, ends, labels, width)}".rstrip()
        for rank, (order, ends) in enumerate(rows)
    )


def _line(order: Sequence[Action], ends: list[int], labels: Labels, width: int) -> str:
    line = ""
    for action, end in zip(order, ends, strict=True):
        columns = COLUMNS[action.do]
        cell = labels[action].ljust(columns * width - 1, "=" if columns > 1 else " ")
        line = line.ljust((end - columns) * width) + cell + " "
    return line


def _line_start(schedule: Schedule, rank: int) -> str:
    head = f"rank {rank:<{len(str(schedule.num_ranks - 1))}}"
    own = schedule.stages_of[rank]
    return head if own == (rank,) else f"{head} ({' '.join(map(str, own))})"


def _label(action: Action, own: tuple[int, ...]) -> str:
    if len(own) > 2:
        return str(action)
    letter = action.do.value if action.stage == own[0] else action.do.value.lower()
    return f"{letter}{action.microbatch}"


def parse_drawing(text: str, name: str = "drawn") -> Schedule:
    """Return the schedule of a drawing; lines that do not begin with a rank are ignored.

    Args:
        text: Drawing.
        name: Name of the returned schedule.

    Raises:
        OptionError: The text has no line of a rank, ranks are not in order, or a line contains
            something other than actions.
    """
    lines = list(_LINE.finditer(text))
    ranks = [int(line[1]) for line in lines]
    require(
        bool(ranks) and ranks == list(range(len(ranks))),
        what=f"the drawing has lines for the ranks {ranks}",
        why="it needs one line for each rank, in order, that begins with `rank`, the number and "
        "two spaces",
        hint="Write one such line for each rank, from 0 on",
        about="text",
    )
    stages = [_stages(line) for line in lines]
    orders = tuple(tuple(_actions(line[3], own)) for line, own in zip(lines, stages, strict=True))
    rank_of = {stage: rank for rank, own in enumerate(stages) for stage in own}
    return Schedule(
        name=name,
        rank_of=tuple(rank_of[stage] for stage in sorted(rank_of)),
        num_microbatches=1 + max((a.microbatch for order in orders for a in order), default=-1),
        orders=orders,
    )


def _stages(line: re.Match[str]) -> tuple[int, ...]:
    return tuple(map(int, line[2].split())) if line[2] else (int(line[1]),)


def _actions(line: str, own: tuple[int, ...]) -> Iterator[Action]:
    for cell in line.split():
        match = _CELL.fullmatch(cell)
        chunk = int(match[2].islower()) if match else 0
        if match is None or chunk >= len(own):
            raise OptionError(
                f"the drawing of a rank with the stages {own} contains {cell!r}",
                "an action is written as F0, B0===, I0 or W0, and as f0 on the rank's second stage",
                "Write the action in this way",
                about=("text", cell),
                kind="unknown_action",
            )
        stage = int(match[1]) if match[1] else own[chunk]
        yield Action(Do(match[2].upper()), stage, int(match[3]))
