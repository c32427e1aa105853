# SPDX-License-Identifier: Apache-2.0
"""The simulator's loop.

An action starts when its rank is free and everything that it waits for has arrived. Since each
rank keeps to its order, times follow without a clock and without a queue of events: let any rank
run until something that it waits for is missing; whoever brings the last missing message wakes it.
Whichever rank runs first, the times are the same. Each action and each message is looked at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.core.simulate.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Times by rank and place in its order; short where a rank waits for ever.

    Attributes:
        travel_seconds: By rank: idle while the message that it waited for was under way.
    """

    starts: list[list[float]]
    ends: list[list[float]]
    travel_seconds: list[float]


def run(tables: Tables) -> Run:
    """The times of every action that can start at all."""
    num_ranks, num_cells = len(tables.rows), len(tables.missing)
    seconds, sends, missing = tables.seconds, tables.sends, list(tables.missing)
    rank_of, num_microbatches = tables.rank_of, tables.num_microbatches
    arrived, travelled = [0.0] * num_cells, [0.0] * num_cells
    channel_free = [0.0] * tables.num_channels
    starts: list[list[float]] = [[] for _ in range(num_ranks)]
    ends: list[list[float]] = [[] for _ in range(num_ranks)]
    travel = [0.0] * num_ranks
    awake, waits_at = list(range(num_ranks)), [-1] * num_ranks
    while awake:
        rank = awake.pop()
        cells, rows, begun, ended = tables.cells[rank], tables.rows[rank], starts[rank], ends[rank]
        now = ended[-1] if ended else 0.0
        for place in range(len(ended), len(cells)):
            cell, row = cells[place], rows[place]
            if missing[cell]:
                waits_at[rank] = cell
                break
            if arrived[cell] > now:
                travel[rank] += min(arrived[cell] - now, travelled[cell])
                now = arrived[cell]
            begun.append(now)
            now += seconds[row]
            ended.append(now)
            for first, channel, busy, latency in sends[row]:
                target, arrival = first + cell % num_microbatches, now
                if channel >= 0:
                    free = channel_free[channel]
                    channel_free[channel] = arrival = (free if free > now else now) + busy
                    arrival += latency
                if arrival > arrived[target]:
                    arrived[target], travelled[target] = arrival, arrival - now
                missing[target] -= 1
                if not missing[target]:
                    other = rank_of[target // num_microbatches]
                    if waits_at[other] == target:
                        awake.append(other)
    return Run(starts=starts, ends=ends, travel_seconds=travel)
