# SPDX-License-Identifier: Apache-2.0
"""Event loop of the simulator.

An action starts when its rank is free and all its inputs have arrived. Every rank runs its actions
in a fixed order, so neither a clock nor a queue of events is needed. The loop computes the times of
one rank's actions until an input is missing. Then it continues with another rank, and returns to
the first rank once the arrival times of all missing inputs are known. The times do not depend on
the order in which the loop visits ranks. Each action and each message is processed once.
"""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.core.simulate.schedule_tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimes:
    """Start and end times of all actions.

    In a deadlock, the lists of a waiting rank are shorter than its order of actions.

    Attributes:
        starts: Start times in seconds, by rank and position in its order.
        ends: End times in seconds, by rank and position in its order.
        travel_seconds: Seconds in which each rank was idle because its next input was still being
            sent, by rank.
    """

    starts: list[list[float]]
    ends: list[list[float]]
    travel_seconds: list[float]


def run(tables: Tables) -> EventTimes:
    """Compute the start and end times of all actions of a step.

    Actions that cannot start because of a deadlock have no times.

    Args:
        tables: Order, durations and messages of the actions.
    """
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
    return EventTimes(starts=starts, ends=ends, travel_seconds=travel)
