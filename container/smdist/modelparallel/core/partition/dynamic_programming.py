# SPDX-License-Identifier: Apache-2.0
"""Division of a chain of units into stages, so that the largest load of a stage is minimal.

A unit is a module that is never divided. A span is several consecutive units as one stage. The load
of a stage is its time for one microbatch, or a weighted mean of its time and memory. The method is
dynamic programming. Let load(i, j) be the load of the span of units i to j - 1. Let f[s][j] be the
smallest possible largest load if the first j units are divided into s stages. Then

    f[s][j] = min over i of max(f[s - 1][i], load(i, j))

Among divisions with an equal largest load, a second pass chooses the one that sends the fewest
bytes, then the one whose fullest stage holds the fewest bytes.

Time and memory of a span only grow with its length. So spans whose load is above a guessed bound
are skipped. The bound is raised and the search repeated, until the largest load of the result is
within the bound. The result is exact, because every skipped span has a load above the bound.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from math import inf
from operator import add

from smdist.modelparallel.core.partition.chain import Chain, SpanCost
from smdist.modelparallel.core.partition.partition_options import PartitionOptions

RunBytes = tuple[list[float], list[int]]

SLACK = 1 + 1e-9  # loads whose ratio is smaller are treated as equal (rounding errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Possible stages that end with the same module, the longest stage first.

    In each list, element k is for the stage that begins with module number `start` + k. A load is
    the time of a stage, or a weighted mean of its time and memory.

    Attributes:
        start: Number of the first module of the longest stage.
        spans: Cost of each stage.
        loads: Load of each stage, by number of microbatches in flight.
        fits_from: Number of the first module of the longest stage that fits in memory, by number
            of microbatches in flight.
    """

    start: int
    spans: list[SpanCost]
    loads: dict[int, list[float]] = field(default_factory=dict)
    fits_from: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Possible stages, from which the search chooses.

    Stages that do not fit in memory are left out. Stages with too large a load are left out, too.
    A load is the time of a stage, or a weighted mean of its time and memory.

    Attributes:
        rows: Row j has the stages that end before module number j. Row 0 is empty.
        is_whole: True if no stage was left out because of its load.
    """

    rows: list[Row]
    is_whole: bool


def cut(chain: Chain, options: PartitionOptions, limit: int | None) -> tuple[int, ...] | None:
    """Return the ends of the best stages; None if no division fits in memory.

    Stage s has the units from the end of stage s - 1 up to its own end, which is not included.

    Args:
        chain: Units of the model in the order of execution.
        options: Options of the partition.
        limit: Bytes that one stage may hold; None for unlimited memory.
    """
    bound = _guess(chain, options)
    while True:
        table = _table(chain, options, limit, bound)
        least = _least_load(table, options)
        if least <= bound:
            return _cut_with_least_traffic(table, options, least * SLACK)
        if table.is_whole:
            return None if least == inf else _cut_with_least_traffic(table, options, least * SLACK)
        bound = least if least < inf else bound * 2  # no span above `least` can improve the result


def _guess(chain: Chain, options: PartitionOptions) -> float:
    """Return a first guess of the largest load of a stage.

    The load of a stage is its time, or a weighted mean of its time and memory.
    """
    fewest_in_flight, end = min(options.in_flight), len(chain.names)
    whole = chain.span(0, end)
    alone = max(_load(chain.span(at, at + 1), options, fewest_in_flight) for at in range(end))
    even = options.load(whole.seconds, whole.memory_bytes(fewest_in_flight)) / options.num_stages
    return max(even, alone, 1e-300) * 1.2


def _load(span: SpanCost, options: PartitionOptions, in_flight: int) -> float:
    seconds = span.seconds + options.wire_seconds(span.num_messages, span.wire_bytes)
    return options.load(seconds, span.memory_bytes(in_flight))


def _table(chain: Chain, options: PartitionOptions, limit: int | None, bound: float) -> Table:
    rows, is_whole = [Row(start=0, spans=[])], True
    fewest_in_flight = min(options.in_flight)
    for end in range(1, len(chain.names) + 1):
        spans = []
        for span in chain.spans_ending(end):
            memory = span.memory_bytes(fewest_in_flight)
            if limit is not None and memory > limit:
                break
            if options.load(span.seconds, memory) > bound * SLACK:
                is_whole = False
                break
            spans.append(span)
        rows.append(_row(end, spans[::-1], options, limit))
    return Table(rows=rows, is_whole=is_whole)


def _row(end: int, spans: list[SpanCost], options: PartitionOptions, limit: int | None) -> Row:
    row = Row(start=end - len(spans), spans=spans)
    loads: list[float] = []
    for number in sorted(set(options.in_flight)):
        if not loads or options.memory_weight:  # a load of time alone is the same for all numbers
            loads = [_load(span, options, number) for span in spans]
        row.loads[number] = loads
        row.fits_from[number] = row.start + _num_too_full(spans, number, limit)
    return row


def _num_too_full(spans: list[SpanCost], in_flight: int, limit: int | None) -> int:
    if limit is None:
        return 0
    return bisect_left(spans, -limit, key=lambda span: -span.memory_bytes(in_flight))


def _least_load(table: Table, options: PartitionOptions) -> float:
    size = len(table.rows)
    before = [0.0] + [inf] * (size - 1)
    for stage, number in enumerate(options.in_flight):
        now = [inf] * size
        for end in range(stage + 1, size - (options.num_stages - 1 - stage)):
            row = table.rows[end]
            first = max(row.fits_from[number], stage)
            if first < end:
                now[end] = min(map(max, before[first:end], row.loads[number][first - row.start :]))
        before = now
    return before[-1]


def _cut_with_least_traffic(table: Table, options: PartitionOptions, cap: float) -> tuple[int, ...]:
    """Return the end of each stage, for the division into stages that sends the fewest bytes.

    Args:
        table: Possible stages, with their costs.
        options: Options of the partition.
        cap: Upper limit of a stage's load: its time, or a weighted mean of its time and memory.
    """
    size = len(table.rows)
    sent, fullest = [0.0] + [inf] * (size - 1), [0.0] + [inf] * (size - 1)
    choices: list[list[int]] = []
    computed_for, run_bytes = 0, list[RunBytes]()
    for stage, number in enumerate(options.in_flight):
        if number != computed_for:
            computed_for, run_bytes = number, [_run_bytes(row, number, cap) for row in table.rows]
        now, full, choice = [inf] * size, [inf] * size, [0] * size
        for end in range(stage + 1, size - (options.num_stages - 1 - stage)):
            row, (received, memory) = table.rows[end], run_bytes[end]
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


def _run_bytes(row: Row, in_flight: int, cap: float) -> RunBytes:
    """Return the bytes that each possible stage receives, and the bytes that each stage holds.

    A stage that takes more than `cap` gets infinite received bytes, so that it is not chosen.

    Args:
        row: Possible stages.
        in_flight: Number of microbatches whose activations a stage keeps.
        cap: Largest allowed time of a stage, or largest weighted mean of its time and memory.
    """
    if not row.spans:
        return [], []
    pairs = zip(row.spans, row.loads[in_flight], strict=True)
    received = [span.received_bytes if load <= cap else inf for span, load in pairs]
    return received, [span.memory_bytes(in_flight) for span in row.spans]


def stages_needed(chain: Chain, options: PartitionOptions, cap: float) -> int:
    """Return the number of stages that the model needs if each may take at most `cap` seconds.

    A single module that takes longer gets a stage of its own. Memory is not limited.
    """
    fewest = [0]
    for end in range(1, len(chain.names) + 1):
        counts = [fewest[end - 1]]
        for length, span in enumerate(chain.spans_ending(end), start=1):
            if span.seconds > cap:
                break
            if span.seconds + options.wire_seconds(span.num_messages, span.wire_bytes) <= cap:
                counts.append(fewest[end - length])
        fewest.append(min(counts) + 1)
    return fewest[-1]


def _walk_back(choices: list[list[int]], end: int) -> tuple[int, ...]:
    ends = []
    for choice in reversed(choices):
        ends.append(end)
        end = choice[end]
    return tuple(reversed(ends))
