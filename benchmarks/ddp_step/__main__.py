# SPDX-License-Identifier: Apache-2.0
"""A step of DDP beside Gloo and what the wire allows; see README.md.

The wire's limit: the first bucket of gradients is ready after the forward pass and the
backward pass of its layers. From then on 2 (H-1)/H of all gradient bytes must leave each
of H hosts: those of one host are summed before they leave, and no all-reduce sends less.
The wire runs while the rest of the backward pass does, so the step takes at least

    max(compute, forward + until the first bucket is ready + 2 (H-1)/H * bytes / goodput)

with compute as measured in the same rounds, and goodput as iperf3 has it on the same hosts.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from benchmarks.ddp_step.work import BACKWARD, FORWARD, GRADIENT_BYTES
from benchmarks.harness import bars
from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table, time_text

PREPARE = "benchmarks.ddp_step.work:prepare"
MEASURE = "benchmarks.ddp_step.work:measure"
COMPUTE = "benchmarks.ddp_step.work:compute"
COLUMNS = [
    "hosts x ranks", "compute", "smdist", "Gloo", "/ Gloo", "wire's limit", "of limit",
    "limit / Gloo", "CPU s/GB", "Gloo's CPU", "compute's CPU",
]  # fmt: skip


@dataclass
class Row:
    """One line of the table; bytes, and bytes per second."""

    hosts: int
    ranks: int
    first_bucket: int
    goodput: float
    series: dict[str, Series]

    @property
    def limit(self) -> float:
        compute = self.series["compute"].seconds
        backward = BACKWARD / (FORWARD + BACKWARD) * compute
        ready = compute - backward + backward * self.first_bucket / GRADIENT_BYTES
        wire = 2 * (self.hosts - 1) / self.hosts * GRADIENT_BYTES / self.goodput
        return max(compute, ready + wire)

    def cpu_per_gb(self, name: str) -> float:
        return self.series[name].cpu_seconds / (GRADIENT_BYTES / 1e9)

    def cells(self) -> list[str]:
        smdist, gloo = self.series["smdist"].seconds, self.series["gloo"].seconds
        return [
            f"{self.hosts} x {self.ranks}",
            time_text(self.series["compute"].seconds),
            time_text(smdist),
            time_text(gloo),
            f"{gloo / smdist:.2f}",
            time_text(self.limit),
            f"{self.limit / smdist:.0%}",
            f"{gloo / self.limit:.2f}",
            *[f"{self.cpu_per_gb(name):.3g}" for name in ("smdist", "gloo", "compute")],
        ]


def steps(hosts: int, ranks: int, arguments: argparse.Namespace) -> Row:
    with EmulatedHosts(hosts, arguments.rate) as emulated, ExitStack() as stack:
        places = emulated.places(ranks)
        everyone = {p: stack.enter_context(Ranks(p, places)) for p in ("smdist", "gloo")}
        buckets = [each.call(PREPARE, peer=peer) for peer, each in everyone.items()]
        goodput = emulated.goodput()
        work = {peer: (each, MEASURE) for peer, each in everyone.items()}
        work["compute"] = (everyone["gloo"], COMPUTE)
        series = interleave(work, arguments.rounds)
        return Row(hosts, ranks, buckets[0][0], goodput, series)


def main() -> None:
    arguments = _arguments()
    rows: list[Row] = []
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
