# SPDX-License-Identifier: Apache-2.0
"""Optimal cuts of a chain: the largest load of a stage is least, by dynamic programming.

With load(i, j) for units i to j - 1 on one stage, the best cut of the units before j into s stages
has the largest load

    f[s][j] = min over i of max(f[s - 1][i], load(i, j))

Among equally good cuts, a second pass chooses those that send the fewest bytes, then those whose
fullest stage is emptiest. Time and memory only grow with a run of units, so runs that are too long
for a good answer are skipped: a guess bounds the load, and is raised until an answer lies below it.
No run below the bound was skipped, so the answer is exact.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from math import inf
from operator import add

from smdist.modelparallel.core.partition.chain import Chain, StageCost
from smdist.modelparallel.core.partition.objective import Aim

Prices = tuple[list[float], list[int]]

SLACK = 1 + 1e-9  # loads that differ by less are equal up to rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Runs of units that end at one unit, from the longest run within the bounds on.

    Attributes:
        start: First unit of the longest run.
        spans: Cost of each run, by start.
        loads: Load of each run by start, for each number of microbatches in flight.
        fits_from: First start whose run fits in memory, for each number in flight.
    """

    start: int
    spans: list[StageCost]
    loads: dict[int, list[float]] = field(default_factory=dict)
    fits_from: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Runs of units whose load may be within the bound and whose memory may be within the limit.

    Attributes:
        rows: Rows by the end of the run; row 0 is empty.
        is_whole: True if the bound excluded no run.
    """

    rows: list[Row]
    is_whole: bool


def cut(chain: Chain, aim: Aim, limit: int | None) -> tuple[int, ...] | None:
    """Return the ends of the stages, or None if no cut fits within `limit` bytes a stage."""
    bound = _guess(chain, aim)
    while True:
        table = _table(chain, aim, limit, bound)
        least = _least_load(table, aim)
        if least <= bound:
            return _cheapest(table, aim, least * SLACK)
        if table.is_whole:
            return None if least == inf else _cheapest(table, aim, least * SLACK)
        bound = least if least < inf else bound * 2  # no run above `least` can improve it


def _guess(chain: Chain, aim: Aim) -> float:
    """Return a bound a little above the least load that any partition can have."""
    few, end = min(aim.in_flight), len(chain.names)
    whole = chain.span(0, end)
    alone = max(_load(chain.span(at, at + 1), aim, few) for at in range(end))
    even = aim.load(whole.seconds, whole.memory_bytes(few)) / aim.num_stages
    return max(even, alone, 1e-300) * 1.2


def _load(span: StageCost, aim: Aim, in_flight: int) -> float:
    seconds = span.seconds + aim.wire_seconds(span.num_messages, span.wire_bytes)
    return aim.load(seconds, span.memory_bytes(in_flight))


def _table(chain: Chain, aim: Aim, limit: int | None, bound: float) -> Table:
    rows, is_whole = [Row(start=0, spans=[])], True
    few = min(aim.in_flight)
    for end in range(1, len(chain.names) + 1):
        spans = []
        for span in chain.spans_ending(end):
            memory = span.memory_bytes(few)
            if limit is not None and memory > limit:
                break
            if aim.load(span.seconds, memory) > bound * SLACK:
                is_whole = False
                break
            spans.append(span)
        rows.append(_row(end, spans[::-1], aim, limit))
    return Table(rows=rows, is_whole=is_whole)


def _row(end: int, spans: list[StageCost], aim: Aim, limit: int | None) -> Row:
    row = Row(start=end - len(spans), spans=spans)
    loads: list[float] = []
    for number in sorted(set(aim.in_flight)):
        if not loads or aim.memory_weight:  # without memory, the load is the same for all numbers
            loads = [_load(span, aim, number) for span in spans]
        row.loads[number] = loads
        row.fits_from[number] = row.start + _num_too_full(spans, number, limit)
    return row


def _num_too_full(spans: list[StageCost], in_flight: int, limit: int | None) -> int:
    if limit is None:
        return 0
    return bisect_left(spans, -limit, key=lambda span: -span.memory_bytes(in_flight))


def _least_load(table: Table, aim: Aim) -> float:
    size = len(table.rows)
    before = [0.0] + [inf] * (size - 1)
    for stage, number in enumerate(aim.in_flight):
        now = [inf] * size
        for end in range(stage + 1, size - (aim.num_stages - 1 - stage)):
            row = table.rows[end]
            first = max(row.fits_from[number], stage)
            if first < end:
                now[end] = min(map(max, before[first:end], row.loads[number][first - row.start :]))
        before = now
    return before[-1]


def _cheapest(table: Table, aim: Aim, cap: float) -> tuple[int, ...]:
    """Return the cut within the cap that sends the fewest bytes; among equals, the least full."""
    size = len(table.rows)
    sent, fullest = [0.0] + [inf] * (size - 1), [0.0] + [inf] * (size - 1)
    choices: list[list[int]] = []
    priced, prices = 0, list[Prices]()
    for stage, number in enumerate(aim.in_flight):
        if number != priced:
            priced, prices = number, [_prices(row, number, cap) for row in table.rows]
        now, full, choice = [inf] * size, [inf] * size, [0] * size
        for end in range(stage + 1, size - (aim.num_stages - 1 - stage)):
            row, (received, memory) = table.rows[end], prices[end]
            first = max(row.fits_from[number], stage)
            if first < end:
                now[end], full[end], choice[end] = min(
                    zip(
                        map(add, sent[first:end], received[first - row.start :]),
                        map(max, fullest[first:end], memory[first - row.start :]),
                        range(first, end),
                        strict=True,
                    )
                )
        sent, fullest = now, full
        choices.append(choice)
    return _walk_back(choices, size - 1)


def _prices(row: Row, in_flight: int, cap: float) -> Prices:
    """Return the bytes that each run receives (infinite above the cap) and that it holds."""
    if not row.spans:
        return [], []
    pairs = zip(row.spans, row.loads[in_flight], strict=True)
    received = [span.received_bytes if load <= cap else inf for span, load in pairs]
    return received, [span.memory_bytes(in_flight) for span in row.spans]


def stages_needed(chain: Chain, aim: Aim, cap: float) -> int:
    """Return the smallest number of stages whose times are all within the cap; memory is ignored.

    A unit that exceeds the cap alone gets a stage of its own.
    """
    fewest = [0]
    for end in range(1, len(chain.names) + 1):
        options = [fewest[end - 1]]
        for length, span in enumerate(chain.spans_ending(end), start=1):
            if span.seconds > cap:
                break
            if span.seconds + aim.wire_seconds(span.num_messages, span.wire_bytes) <= cap:
                options.append(fewest[end - length])
        fewest.append(min(options) + 1)
    return fewest[-1]


def _walk_back(choices: list[list[int]], end: int) -> tuple[int, ...]:
    ends = []
    for choice in reversed(choices):
        ends.append(end)
        end = choice[end]
    return tuple(reversed(ends))
