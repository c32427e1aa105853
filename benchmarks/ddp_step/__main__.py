# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a DDP step against Gloo and the limit of the wire; see README.md.

The wire's limit: the first bucket of gradients is ready after the forward pass and the
backward pass of its layers. From then on 2 (H-1)/H of all gradient bytes must leave each
of H hosts: gradients of one host are summed before they leave, and no all-reduce sends less.
The transfer overlaps with the rest of the backward pass, so the step takes at least

    forward + time until the first bucket is ready + 2 (H-1)/H * bytes / goodput

Forward and backward are measured without communication in the same rounds, and goodput with
iperf3 on the same hosts. Nor can the step end before the last bucket is ready and has been
sent. Its ready time is measured during communication, which also uses processor time.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from benchmarks.allreduce import bare
from benchmarks.ddp_step.work import BACKWARD, FORWARD, GRADIENT_BYTES
from benchmarks.harness import bars
from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table, time_text

WORK = "benchmarks.ddp_step.work"
COLUMNS = [
    "hosts x ranks", "compute", "smdist", "Gloo", "/ Gloo", "bare", "/ bare", "wire", "last ready",
    "limit", "of limit", "limit / Gloo", "CPU s/GB", "Gloo's CPU", "bare's CPU", "compute's CPU",
]  # fmt: skip


@dataclass
class Row:
    """Row of the table; sizes are in bytes, rates in bytes per second, times in seconds."""

    hosts: int
    ranks: int
    buckets: list[int]
    goodput: float
    series: dict[str, Series]

    @property
    def limit(self) -> float:
        """Lower bound of a step in seconds, with the last bucket as late as in smdist's steps."""
        return max(self.by_wire, self.series["ready"].seconds + self.passing(self.buckets[-1]))

    @property
    def by_wire(self) -> float:
        """Lower bound in seconds if all gradients are sent after the first bucket is ready."""
        compute = self.series["compute"].seconds
        backward = BACKWARD / (FORWARD + BACKWARD) * compute
        first = compute - backward + backward * self.buckets[0] / GRADIENT_BYTES
        return first + self.passing(GRADIENT_BYTES)

    def passing(self, size: int) -> float:
        return 2 * (self.hosts - 1) / self.hosts * size / self.goodput

    def cpu_per_gb(self, name: str) -> float:
        return self.series[name].cpu_seconds / (GRADIENT_BYTES / 1e9)

    def cells(self) -> list[str]:
        smdist, gloo, bare = (self.series[name].seconds for name in ("smdist", "gloo", "bare"))
        return [
            f"{self.hosts} x {self.ranks}",
            time_text(self.series["compute"].seconds),
            time_text(smdist),
            time_text(gloo),
            f"{gloo / smdist:.2f}",
            time_text(bare),
            f"{bare / smdist:.2f}",
            time_text(self.by_wire),
            time_text(self.series["ready"].seconds),
            time_text(self.limit),
            f"{self.limit / smdist:.0%}",
            f"{gloo / self.limit:.2f}",
            *[f"{self.cpu_per_gb(name):.3g}" for name in ("smdist", "gloo", "bare", "compute")],
        ]


def steps(hosts: int, ranks: int, arguments: argparse.Namespace) -> Row:
    with EmulatedHosts(hosts, arguments.rate) as emulated, ExitStack() as stack:
        places = emulated.places(ranks)
        everyone = {p: stack.enter_context(Ranks(p, places)) for p in ("smdist", "gloo")}
        everyone["bare"] = everyone["gloo"]  # the same processes with another model
        buckets = [each.call(f"{WORK}:prepare", peer=peer) for peer, each in everyone.items()]
        goodput = emulated.goodput()
        everyone |= {"compute": everyone["gloo"], "ready": everyone["smdist"]}
        work = {name: (ranks, f"{WORK}:{name}") for name, ranks in everyone.items()}
        series = interleave(work, arguments.rounds)
        return Row(hosts, ranks, buckets[0][0], goodput, series)


def main() -> None:
    arguments = _arguments()
    rows: list[Row] = []
    bare.build()
    for ranks in arguments.ranks:
        for hosts in arguments.hosts:
            rows.append(steps(hosts, ranks, arguments))
            print(" ".join(rows[-1].cells()), flush=True)
    text = table(COLUMNS, [row.cells() for row in rows])
    print(f"\n{machine()}; emulated links of {arguments.rate}\n\n{text}")
    labels = [f"{row.hosts} x {row.ranks}" for row in rows]
    figure = bars.draw(labels, [row.series for row in rows], [row.limit for row in rows])
    save("ddp_step", text, [asdict(row) for row in rows], figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("ddp_step", description="A step of DDP beside Gloo.")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="on each host")
    parser.add_argument("--rate", default="1gbit", help="of emulated links")
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
