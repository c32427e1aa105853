# SPDX-License-Identifier: Apache-2.0
"""Benchmark of a step of smp's replicas beside DDP on the same engine and on Gloo; see README."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict

from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table, time_text

WORK = "benchmarks.replica_step.work"
COLUMNS = [
    "hosts",
    "smp",
    "DDP",
    "DDP / smp",
    "DDP on Gloo",
    "Gloo / smp",
    "CPU s",
    "DDP's",
    "Gloo's",
]


def steps(hosts: int, arguments: argparse.Namespace) -> dict[str, Series]:
    """Measure steps on emulated hosts of one rank each, in turns."""
    with EmulatedHosts(hosts, arguments.rate) as emulated, ExitStack() as stack:
        places = emulated.places(1)
        ours = stack.enter_context(Ranks("smdist", places))
        gloo = stack.enter_context(Ranks("gloo", places))
        ours.call(f"{WORK}:by_smp")
        for each in (ours, gloo):
            each.call(f"{WORK}:by_ddp")
        work = {
            "smp": (ours, f"{WORK}:smp_step"),
            "ddp": (ours, f"{WORK}:ddp_step"),
            "gloo": (gloo, f"{WORK}:ddp_step"),
        }
        return interleave(work, arguments.rounds)


def cells(hosts: int, series: dict[str, Series]) -> list[str]:
    ours, ddp, gloo = (series[name].seconds for name in ("smp", "ddp", "gloo"))
    return [
        str(hosts), time_text(ours), time_text(ddp), f"{ddp / ours:.2f}", time_text(gloo),
        f"{gloo / ours:.2f}", *[f"{each.cpu_seconds:.3g}" for each in series.values()],
    ]  # fmt: skip


def main() -> None:
    arguments = _arguments()
    rows = {}
    for hosts in arguments.hosts:
        rows[hosts] = steps(hosts, arguments)
        print(" ".join(cells(hosts, rows[hosts])), flush=True)
    text = table(COLUMNS, [cells(hosts, series) for hosts, series in rows.items()])
    print(f"\n{machine()}; emulated links of {arguments.rate}\n\n{text}")
    numbers = {str(h): {name: asdict(s) for name, s in row.items()} for h, row in rows.items()}
    save("replica_step", text, numbers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("replica_step", description="A step of smp beside DDP.")
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rate", default="1gbit", help="of emulated links")
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
