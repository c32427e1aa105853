# SPDX-License-Identifier: Apache-2.0
"""Benchmark of Horovod's names and of smdist's DDP beside DDP on Gloo; see README.md."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table, time_text

WORK = "benchmarks.horovod_step.work"
STEP_COLUMNS = [
    "hosts", "buckets", "DDP on Gloo", "Horovod's names", "Gloo / it", "smdist's DDP", "Gloo / it",
]  # fmt: skip
SMALL_COLUMNS = ["hosts", "fused", "all started", "/ fused", "one by one", "/ fused"]


def main() -> None:
    arguments = _arguments()
    steps, small, numbers = [], [], []
    for hosts in arguments.hosts:
        with EmulatedHosts(hosts, arguments.rate) as emulated:
            places = emulated.places(1)
            with Ranks("smdist", places) as ours, Ranks("gloo", places) as gloo:
                for mib in arguments.bucket_mib:
                    ours.call(f"{WORK}:prepare_horovod", bucket_mib=mib)
                    gloo.call(f"{WORK}:prepare_ddp", bucket_mib=mib)
                    ours.call(f"{WORK}:prepare_smdists_ddp", bucket_mib=mib)
                    peers = {"horovod": ours, "smdists_ddp": ours, "ddp": gloo}
                    work = {name: (ranks, f"{WORK}:{name}") for name, ranks in peers.items()}
                    series = interleave(work, arguments.rounds)
                    steps.append([str(hosts), f"{mib} MiB", *_step_cells(series)])
                    numbers.append({name: asdict(each) for name, each in series.items()})
                many = {each: (ours, f"{WORK}:{each}") for each in ("fused", "started", "single")}
                series = interleave(many, arguments.rounds)
        small.append([str(hosts), *_small_cells(series)])
        numbers.append({name: asdict(each) for name, each in series.items()})
    text = f"{table(STEP_COLUMNS, steps)}\n\n{table(SMALL_COLUMNS, small)}"
    print(f"{machine()}; emulated links of {arguments.rate}, medians\n\n{text}")
    save("horovod_step", text, numbers)


def _step_cells(series: dict[str, Series]) -> list[str]:
    gloo = series["ddp"].seconds
    cells = [time_text(gloo)]
    for ours in (series["horovod"].seconds, series["smdists_ddp"].seconds):
        cells += [time_text(ours), f"{gloo / ours:.2f}"]
    return cells


def _small_cells(series: dict[str, Series]) -> list[str]:
    fused, started, single = (series[each].seconds for each in ("fused", "started", "single"))
    cells = [time_text(fused), time_text(started), f"{started / fused:.1f}"]
    return [*cells, time_text(single), f"{single / fused:.1f}"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("horovod_step", description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[4])
    parser.add_argument("--bucket-mib", type=int, nargs="+", default=[4, 25])
    parser.add_argument("--rate", default="1gbit", help="of emulated links")
    parser.add_argument("--rounds", type=int, default=7)
    return parser.parse_args()


if __name__ == "__main__":
    main()
