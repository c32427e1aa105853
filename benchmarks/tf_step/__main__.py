# SPDX-License-Identifier: Apache-2.0
"""Benchmark of TensorFlow gradients against MultiWorkerMirroredStrategy; see README.md."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.harness import bars
from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table, time_text
from benchmarks.tf_step.size import BACKWARD, FORWARD, GRADIENT_BYTES, LAYERS

WORK = "benchmarks.tf_step.work"
OURS, THEIRS = "smdist-tf", "mirrored"
BARS = {"all-reduce": 1.15, "step": 1.4}
COLUMNS = [
    "hosts", "work", "compute", "smdist", "MultiWorkerMirrored", "/ it", "wire's limit",
    "CPU s/GB", "its CPU",
]  # fmt: skip


@dataclass
class Row:
    """Row of the table; rates are in bytes per second, times in seconds."""

    hosts: int
    work: str
    goodput: float
    series: dict[str, Series]

    @property
    def ratio(self) -> float:
        return self.series["mirrored"].seconds / self.series["smdist"].seconds

    @property
    def limit(self) -> float:
        wire = 2 * (self.hosts - 1) / self.hosts * GRADIENT_BYTES / self.goodput
        if self.work == "all-reduce":
            return wire
        ready = FORWARD + BACKWARD / LAYERS  # the first bucket has one layer
        return max(self.series["compute"].seconds, ready + wire)

    def cells(self) -> list[str]:
        seconds = {name: time_text(each.seconds) for name, each in self.series.items()}
        cpu = {n: each.cpu_seconds / (GRADIENT_BYTES / 1e9) for n, each in self.series.items()}
        return [
            str(self.hosts),
            self.work,
            seconds["compute"] if self.work == "step" else "",
            seconds["smdist"],
            seconds["mirrored"],
            f"{self.ratio:.2f}",
            time_text(self.limit),
            f"{cpu['smdist']:.3g}",
            f"{cpu['mirrored']:.3g}",
        ]


class Named:
    """Ranks of one peer, with the name of the work that they measure."""

    def __init__(self, ranks: Ranks, name: str) -> None:
        self.call = partial(self._call, ranks, name)

    @staticmethod
    def _call(ranks: Ranks, name: str, function: str, **arguments: Any) -> list[Any]:
        return ranks.call(function, name=name, **arguments)


def rows_of(hosts: int, arguments: argparse.Namespace) -> list[Row]:
    with EmulatedHosts(hosts, arguments.rate) as emulated, ExitStack() as stack:
        places = emulated.places(1)
        ours, theirs = (stack.enter_context(Ranks(peer, places)) for peer in (OURS, THEIRS))
        for peer, ranks in ((OURS, ours), (THEIRS, theirs)):
            ranks.call(f"{WORK}:prepare", peer=peer)
        goodput = emulated.goodput()
        found = []
        for work in BARS:
            everyone = {
                "smdist": (Named(ours, work), f"{WORK}:measure"),
                "mirrored": (Named(theirs, work), f"{WORK}:measure"),
                "compute": (Named(ours, "compute"), f"{WORK}:measure"),
            }
            found.append(Row(hosts, work, goodput, interleave(everyone, arguments.rounds)))
        return found


def main() -> None:
    arguments = _arguments()
    rows: list[Row] = []
    for hosts in arguments.hosts:
        rows += rows_of(hosts, arguments)
        print(*(" ".join(row.cells()) for row in rows[-2:]), sep="\n", flush=True)
    text = table(COLUMNS, [row.cells() for row in rows])
    print(f"\n{machine()}; emulated links of {arguments.rate}\n\n{text}")
    for row in rows:
        verdict = "met" if row.ratio >= BARS[row.work] else "NOT met"
        print(f"{row.hosts} hosts, {row.work}: {row.ratio:.2f}, {BARS[row.work]} is {verdict}")
    labels = [f"{row.work}\n{row.hosts} hosts" for row in rows]
    figure = bars.draw(labels, [row.series for row in rows], [row.limit for row in rows])
    save("tf_step", text, [asdict(row) for row in rows], figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("tf_step", description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", default="1gbit", help="of emulated links")
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


if __name__ == "__main__":
    main()
