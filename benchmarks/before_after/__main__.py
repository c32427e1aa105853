# SPDX-License-Identifier: Apache-2.0
"""Benchmark of this checkout against another one of the same project; see README.md.

Ranks of both run the same work in turns, and this checkout's a second time: its ratio to itself
is the noise of that row.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.harness.hosts import EmulatedHosts, Host
from benchmarks.harness.interleave import Series, interleave, ratio
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, size_text, table, time_text

KIB, MIB = 1 << 10, 1 << 20
ALLREDUCE, DDP = "benchmarks.allreduce.work", "benchmarks.ddp_step.work"
PIPELINE = "benchmarks.pipeline_throughput.work"
SIZES = {0: [KIB, 64 * KIB, MIB, 4 * MIB, 25 * MIB, 100 * MIB], 1: [KIB, 64 * KIB, MIB, 16 * MIB]}
COLUMNS = ["work", "before", "now", "before / now", "now / now again", "CPU before / now"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Row of the table: the times of one kind of work, by "before", "now" and "again"."""

    work: str
    series: dict[str, Series]

    @property
    def speedup(self) -> float:
        """Return the time before over the time now."""
        return self.series["before"].seconds / self.series["now"].seconds

    def cells(self) -> list[str]:
        before, now, again = (self.series[name] for name in ("before", "now", "again"))
        return [
            self.work,
            time_text(before.seconds),
            time_text(now.seconds),
            f"{self.speedup:.2f}",
            f"{now.seconds / again.seconds:.2f}",
            f"{ratio(now, before, lambda each: each.cpu_seconds):.2f}",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Ranks of both checkouts on the same hosts, by "before", "now" and "again"."""

    ranks: dict[str, Ranks]

    def prepare(self, function: str, **arguments: object) -> None:
        for each in self.ranks.values():
            each.call(function, **arguments)

    def measure(self, work: str, function: str, rounds: int) -> Row:
        everyone = {name: (each, function) for name, each in self.ranks.items()}
        return Row(work=work, series=interleave(everyone, rounds))


def _sides(stack: ExitStack, before: Path, places: list[Host]) -> Sides:
    trees = {"before": before, "now": None, "again": None}
    ranks = {
        name: stack.enter_context(Ranks("smdist", places, tree=tree, name=name))
        for name, tree in trees.items()
    }
    return Sides(ranks=ranks)


def _allreduce(sides: Sides, place: str, sizes: list[int], rounds: int) -> Iterator[Row]:
    for size in sizes:
        sides.prepare(f"{ALLREDUCE}:prepare", peer="smdist", size=size, dtype="float32")
        yield sides.measure(f"{place}, {size_text(size)}", f"{ALLREDUCE}:measure", rounds)


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Measure every kind of work and yield its row."""
    before, rounds = arguments.before.resolve(), arguments.rounds
    for count in (2, 4):
        with ExitStack() as stack:
            sides = _sides(stack, before, [Host(0)] * count)
            yield from _allreduce(sides, f"all-reduce, {count} ranks", SIZES[0], rounds)
    for count in (2, 4):
        with EmulatedHosts(count, arguments.rate) as emulated, ExitStack() as stack:
            sides = _sides(stack, before, emulated.hosts)
            yield from _allreduce(sides, f"all-reduce, {count} hosts", SIZES[1], rounds)
    with EmulatedHosts(2, arguments.rate) as emulated, ExitStack() as stack:
        sides = _sides(stack, before, emulated.places(2))
        sides.prepare(f"{DDP}:prepare", peer="smdist")
        yield sides.measure("DDP step, 2 hosts x 2 ranks", f"{DDP}:smdist", rounds)
    with ExitStack() as stack:
        sides = _sides(stack, before, [Host(0), Host(0)])
        sides.prepare(f"{PIPELINE}:by_us", pipeline="auto")
        everyone = {name: (_Named(each), "measure") for name, each in sides.ranks.items()}
        yield Row(work="pipeline step, 2 ranks", series=interleave(everyone, rounds))


@dataclass(frozen=True, slots=True)
class _Named:
    """Ranks whose work takes the name of a contender."""

    ranks: Ranks

    def call(self, function: str, **arguments: object) -> list[object]:
        return self.ranks.call(f"{PIPELINE}:{function}", name="smdist", **arguments)


def main() -> None:
    """Print the table and save it."""
    arguments = _arguments()
    found = []
    for row in rows(arguments):
        print(" ".join(row.cells()), flush=True)
        found.append(row)
    text = table(COLUMNS, [row.cells() for row in found])
    print(f"\n{machine()}; emulated links of {arguments.rate}\n\n{text}")
    save("before_after", text, [asdict(row) for row in found], _drawn(found))


def _drawn(found: list[Row]) -> Figure:
    figure = Figure(figsize=(7, 0.3 * len(found) + 1))
    axes = figure.subplots()
    names = [row.work for row in found][::-1]
    axes.barh(names, [row.speedup for row in found][::-1], color="tab:blue")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("time before / time now; above 1 this checkout is faster")
    return figure


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("before_after", description=__doc__)
    parser.add_argument("before", type=Path, help="another checkout, after `make demo` there")
    parser.add_argument("--rate", default="1gbit", help="of emulated links")
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    python = arguments.before / ".venv/bin/python"
    if not python.exists():
        parser.error(f"{python} does not exist: run `make demo` in {arguments.before} first")
    return arguments


if __name__ == "__main__":
    main()
