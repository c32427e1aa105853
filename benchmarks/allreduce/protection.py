# SPDX-License-Identifier: Apache-2.0
"""Cost of the checks and of the encryption of what hosts send to each other; see README.md.

One rank on each of a few emulated hosts sums float32 with every protection in turn.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack
from unittest import mock

from benchmarks.allreduce.__main__ import KIB, MEASURE, MIB, PREPARE
from benchmarks.harness.hosts import EmulatedHosts
from benchmarks.harness.interleave import Series, interleave
from benchmarks.harness.ranks import Ranks
from benchmarks.harness.report import RESULTS, machine, size_text, table, time_text

PROTECTIONS = {
    "off": {"SMDIST_INTEGRITY": "off"},
    "crc32c": {"SMDIST_INTEGRITY": "crc32c"},
    "mac": {"SMDIST_INTEGRITY": "mac"},
    "tls": {"SMDIST_ENCRYPT": "1"},
}
SIZES = [KIB, 64 * KIB, MIB, 16 * MIB]
COLUMNS = ["hosts", "link", "size", *PROTECTIONS]
# Unequal settings would hide the difference that is measured.
SETTINGS = {
    "SMDIST_LANES": "1",
    "SMDIST_CHUNK_BYTES": "262144",
    "SMDIST_ONE_SHOT_BYTES": "4096",
    "SMDIST_SINGLE_OWNER_BYTES": "0",
    "SMDIST_ARRIVING_BYTES": "0",
}


def rows(count: int, rate: str, arguments: argparse.Namespace) -> Iterator[list[str]]:
    """Yield a row for each size: times, ratios to no protection, and processor seconds per GB."""
    with EmulatedHosts(count, rate) as emulated, ExitStack() as stack:
        everyone = {}
        for name, protection in PROTECTIONS.items():
            with mock.patch.dict(os.environ, SETTINGS | protection):
                ranks = Ranks("smdist", emulated.hosts, name=name)
                everyone[name] = stack.enter_context(ranks)
        for size in arguments.sizes:
            for each in everyone.values():
                each.call(PREPARE, peer="smdist", size=size, dtype="float32")
            work = {name: (each, MEASURE) for name, each in everyone.items()}
            series = interleave(work, arguments.rounds)
            cells = [_cell(series[name], series["off"], size) for name in PROTECTIONS]
            yield [str(count), rate, size_text(size), *cells]


def _cell(series: Series, off: Series, size: int) -> str:
    low, high = (each / off.seconds for each in series.spread)
    ratio = f"{series.seconds / off.seconds:.2f} ({low:.2f}-{high:.2f})"
    return f"{time_text(series.seconds)}, {ratio}, {series.cpu_seconds / (size / 1e9):.3g} s/GB"


def main() -> None:
    """Print the table, and write it below build/benchmarks."""
    parser = argparse.ArgumentParser("protection", description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rates", nargs="+", default=["1gbit", "40gbit"])
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    found = []
    for count in arguments.hosts:
        for rate in arguments.rates:
            for row in rows(count, rate, arguments):
                print(" | ".join(row), flush=True)
                found.append(row)
    text = table(COLUMNS, found)
    print(f"\n{machine()}\n\n{text}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "protection.md").write_text(f"{machine()}\n\n{text}\n")


if __name__ == "__main__":
    main()
