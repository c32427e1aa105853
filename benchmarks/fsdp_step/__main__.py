# SPDX-License-Identifier: Apache-2.0
"""Benchmark of an FSDP2 step and its collectives against Gloo and the limit; see README.md."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from benchmarks.fsdp_step.work import BYTES
from benchmarks.harness import bars
from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table, time_text

MODULE = "benchmarks.fsdp_step.work"
# Measured work: its name, and how often (H-1)/H of all bytes leaves each of H hosts.
WORK = {
    "all_gather": ("all-gather", 1),
    "reduce_scatter": ("reduce-scatter", 1),
    "resharding": ("step, resharding", 3),
    "keeping": ("step, keeping", 2),
}
COLUMNS = [
    "hosts", "work", "smdist", "Gloo", "of Gloo", "wire", "silent", "limit", "of limit",
    "limit of Gloo", "silent, smdist's", "CPU s/GB", "Gloo's CPU",
]  # fmt: skip


@dataclass
class Row:
    """Row of the table; rates are in bytes per second, times in seconds."""

    hosts: int
    work: str
    goodput: float
    series: dict[str, Series]

    @property
    def limit(self) -> float:
        """Lower bound in seconds: FSDP2 waits for each collective, so nothing overlaps with it."""
        return self.wire + (self.series["silent"].seconds if "silent" in self.series else 0)

    @property
    def wire(self) -> float:
        passes = WORK[self.work][1]
        return passes * (self.hosts - 1) / self.hosts * BYTES / self.goodput

    def cpu_per_gb(self, peer: str) -> float:
        return self.series[peer].cpu_seconds / (BYTES / 1e9)

    def cells(self) -> list[str]:
        smdist, gloo = self.series["smdist"].seconds, self.series["gloo"].seconds
        silent, ours = (self.series.get(each) for each in ("silent", "silent, smdist's"))
        return [
            str(self.hosts),
            WORK[self.work][0],
            time_text(smdist),
            time_text(gloo),
            f"{smdist / gloo:.0%}",
            time_text(self.wire),
            time_text(silent.seconds) if silent else "-",
            time_text(self.limit),
            f"{self.limit / smdist:.0%}",
            f"{self.limit / gloo:.0%}",
            time_text(ours.seconds) if ours else "-",
            f"{self.cpu_per_gb('smdist'):.3g}",
            f"{self.cpu_per_gb('gloo'):.3g}",
        ]


def on_hosts(count: int, arguments: argparse.Namespace) -> list[Row]:
    with EmulatedHosts(count, arguments.rate) as emulated, ExitStack() as stack:
        places = emulated.hosts
        everyone = {p: stack.enter_context(Ranks(p, places)) for p in ("smdist", "gloo")}
        for each in everyone.values():
            each.call(f"{MODULE}:prepare")
        rows = []
        for work in WORK:
            turns = {peer: (each, f"{MODULE}:{work}") for peer, each in everyone.items()}
            if work in ("resharding", "keeping"):
                turns["silent"] = (everyone["gloo"], f"{MODULE}:silent_{work}")
                turns["silent, smdist's"] = (everyone["smdist"], f"{MODULE}:silent_{work}")
            goodput = emulated.goodput()
            rows.append(Row(count, work, goodput, interleave(turns, arguments.rounds)))
            print(" ".join(rows[-1].cells()), flush=True)
        return rows


def main() -> None:
    arguments = _arguments()
    rows = [row for count in arguments.hosts for row in on_hosts(count, arguments)]
    text = table(COLUMNS, [row.cells() for row in rows])
    print(f"\n{machine()}; emulated links of {arguments.rate}\n\n{text}")
    labels = [f"{row.hosts} hosts\n{WORK[row.work][0].replace(', ', chr(10))}" for row in rows]
    figure = bars.draw(labels, [row.series for row in rows], [row.limit for row in rows])
    save("fsdp_step", text, [asdict(row) for row in rows], figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("fsdp_step", description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[4], help="one rank each")
    parser.add_argument("--rate", default="1gbit", help="of emulated links")
    parser.add_argument("--rounds", type=int, default=11)
    return parser.parse_args()


if __name__ == "__main__":
    main()
