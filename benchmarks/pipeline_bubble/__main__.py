# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the idle time of pipelines against its closed forms; see README.md.

A step of p ranks and m microbatches takes m (F + I + W) and a bubble of

    (p - 1) (F + I + W)          simple, interleaved, 1f1b
    (p - 1) (F + I + W) / v      interleaved_1f1b with v stages a rank
    (p - 1) (F + I - W)          zero_bubble

The simulator gives exactly these times (its tests check the whole grid), so the theory column is
the simulator's step of stages with the durations that the measured stages sleep.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness import models  # tests/support from here on
from benchmarks.harness.report import machine, save, table, time_text

from ranks import World  # isort: skip
from recording import record  # isort: skip

SCHEDULES = {"simple": 1, "interleaved": 1, "1f1b": 1, "interleaved_1f1b": 2, "zero_bubble": 1}
COLUMNS = [
    "ranks", "schedule", "microbatches", "idle, theory", "idle, measured", "points off",
    "step, theory", "step, measured", "step, replayed", "off",
]  # fmt: skip


@dataclass
class Row:
    """Row of the table; fractions and seconds."""

    ranks: int
    schedule: str
    microbatches: int
    idle_in_theory: float
    idle: float
    step_in_theory: float
    step: float
    step_replayed: float

    @property
    def points_off(self) -> float:
        return 100 * (self.idle - self.idle_in_theory)

    @property
    def replay_off(self) -> float:
        return self.step_replayed / self.step - 1

    def cells(self) -> list[str]:
        seconds = [self.step_in_theory, self.step, self.step_replayed]
        return [
            str(self.ranks),
            self.schedule,
            str(self.microbatches),
            f"{self.idle_in_theory:.1%}",
            f"{self.idle:.1%}",
            f"{self.points_off:+.1f}",
            *map(time_text, seconds),
            f"{self.replay_off:+.1%}",
        ]


def rows(world: World, arguments: argparse.Namespace) -> Iterator[tuple[Row, Any]]:
    """Yield each row with its recorded run."""
    for ranks in arguments.ranks:
        for name in arguments.schedules:
            count = arguments.microbatches or 2 * ranks
            case = (name, SCHEDULES[name], count, arguments.seconds, arguments.steps)
            run, theory = world.run(record, *case, size=ranks, deadline=120)[0]
            replayed = run.replay(skip=0)
            row = Row(
                ranks=ranks,
                schedule=name,
                microbatches=count,
                idle_in_theory=theory.bubble_fraction,
                idle=replayed.measured_bubble,
                step_in_theory=theory.pipeline_seconds,
                step=replayed.measured_seconds,
                step_replayed=replayed.predicted_seconds,
            )
            print(" ".join(row.cells()), flush=True)
            yield row, run


def main() -> None:
    arguments = _arguments()
    world = World(max(arguments.ranks))
    try:
        found = list(rows(world, arguments))
    finally:
        world.close()
    lines = [row for row, _ in found]
    text = table(COLUMNS, [row.cells() for row in lines])
    print(f"\n{machine()}; stages sleep {time_text(arguments.seconds)} for F, I and W\n\n{text}")
    save("pipeline_bubble", text, [asdict(row) for row in lines], found[-1][1].plot().figure)
    points = max(abs(row.points_off) for row in lines)
    replayed = max(abs(row.replay_off) for row in lines)
    print(f"\nat most {points:.1f} points off theory; replayed steps at most {replayed:.1%} off")
    sys.exit(points > arguments.bar)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("pipeline_bubble", description="Idle time of pipelines.")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--microbatches", type=int, help="by default twice the ranks")
    parser.add_argument("--seconds", type=float, default=0.03, help="of each of F, I and W")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--bar", type=float, default=3.0, help="points off theory that pass")
    return parser.parse_args()


if __name__ == "__main__":
    assert models
    main()
