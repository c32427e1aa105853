# SPDX-License-Identifier: Apache-2.0
"""Benchmark of collectives that are matched by name; see README.md."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from benchmarks.harness.hosts import Host
from benchmarks.harness.interleave import interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import machine, save, table, time_text

WORK = "benchmarks.names.work"
COLUMNS = ["ranks", "numbered", "by name", "difference", "/ numbered"]


def main() -> None:
    arguments = _arguments()
    rows, numbers = [], []
    for size in arguments.ranks:
        with Ranks("smdist-tf", [Host(0)] * size) as ranks:
            both = {name: (ranks, f"{WORK}:{name}") for name in ("numbered", "by_name")}
            series = interleave(both, arguments.rounds)
        plain, named = series["numbered"].seconds, series["by_name"].seconds
        cells = [time_text(each) for each in (plain, named, named - plain)]
        rows.append([str(size), *cells, f"{named / plain:.2f}"])
        numbers.append({name: asdict(each) for name, each in series.items()})
    text = table(COLUMNS, rows)
    print(f"{machine()}; one all-reduce of 1 KiB, eagerly, median\n\n{text}")
    save("names", text, numbers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("names", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=11)
    return parser.parse_args()


if __name__ == "__main__":
    main()
