# SPDX-License-Identifier: Apache-2.0
"""Benchmark of the bytes that each pipeline rank holds against theory; see README.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from matplotlib.figure import Figure

from benchmarks.harness import models  # tests/support from here on
from benchmarks.harness.report import machine, save, table

from blocks import Held, Shape  # isort: skip
from holding import measure  # isort: skip
from ranks import World  # isort: skip

SCHEDULES = {"simple": 1, "interleaved": 1, "1f1b": 1, "interleaved_1f1b": 2}
PARTS = {"saved": "saved activations", "received": "receive buffers", "parameters": "parameters"}
COLUMNS = ["schedule", "microbatches"]
for _name in PARTS.values():
    COLUMNS += [f"{_name}, KiB by rank", "off"]


@dataclass
class Row:
    """Row of the table: measured bytes and theory, by rank."""

    schedule: str
    microbatches: int
    ranks: Sequence[tuple[Held, Held]]

    def off(self, part: str) -> float:
        """Return the largest difference of any rank, as a fraction of theory."""
        pairs = [(getattr(found, part), getattr(expected, part)) for found, expected in self.ranks]
        return max(abs(found - expected) / expected for found, expected in pairs)

    def cells(self) -> list[str]:
        cells = [self.schedule, str(self.microbatches)]
        for part in PARTS:
            held = [f"{getattr(found, part) / 1024:.0f}" for found, _ in self.ranks]
            cells += [" ".join(held), f"{self.off(part):.1%}"]
        return cells


def rows(world: World, arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield one row for each schedule and number of microbatches."""
    for name in arguments.schedules:
        stages, ranks = SCHEDULES[name], arguments.ranks
        shape = Shape(num_blocks=6 * ranks, width=arguments.width, rows=arguments.rows)
        for count in arguments.microbatches:
            case = (name, stages, count, shape)
            row = Row(name, count, world.run(measure, *case, size=ranks, deadline=120))
            print(" ".join(row.cells()), flush=True)
            yield row


def draw(lines: Sequence[Row]) -> Figure:
    """Draw the saved activations and receive buffers of rank 0 over the number of microbatches."""
    figure = Figure(figsize=(9, 3.4))
    for axes, part in zip(figure.subplots(1, 2), ("saved", "received"), strict=True):
        for name in dict.fromkeys(row.schedule for row in lines):
            own = [row for row in lines if row.schedule == name]
            counts = [row.microbatches for row in own]
            held = [getattr(row.ranks[0][0], part) / 1024 for row in own]
            axes.plot(counts, held, marker="o", label=name)
        axes.set_title(f"{PARTS[part]} of rank 0", fontsize=10)
        axes.set_xlabel("microbatches")
        axes.set_ylabel("KiB")
        axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    figure.tight_layout()
    return figure


def main() -> None:
    arguments = _arguments()
    world = World(arguments.ranks)
    try:
        lines = list(rows(world, arguments))
    finally:
        world.close()
    text = table(COLUMNS, [row.cells() for row in lines])
    print(f"\n{machine()}\n\n{text}")
    save("pipeline_memory", text, [asdict(row) for row in lines], draw(lines))
    worst = max(row.off(part) for row in lines for part in PARTS)
    print(f"\nat most {worst:.1%} off theory")
    sys.exit(worst > arguments.bar)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("pipeline_memory", description="What ranks hold.")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES)
    parser.add_argument("--microbatches", type=int, nargs="+", default=[4, 8, 32])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32, help="of a microbatch")
    parser.add_argument("--bar", type=float, default=0.05, help="off theory that passes")
    return parser.parse_args()


if __name__ == "__main__":
    assert models
    main()
