# SPDX-License-Identifier: Apache-2.0
"""Starts of many ranks: time, memory and failures, in peace and under attack.

In peace; with strangers that dial all ranks, from the ranks' own address; with a tenth of all
connections refused, reset or delayed; and with both.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from statistics import median

from benchmarks.harness.report import machine, table
from benchmarks.start import engines, rendezvous

_CASES = {
    "": (False, False),
    "strangers": (True, False),
    "faults": (False, True),
    "both": (True, True),
}
_MESHES = ("8x1", "16x1", "32x1", "64x1", "128x1", "256x1", "64x8")


def main() -> None:
    options = _options()
    print(machine())
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    print(f"At most {limit} open files for each process; medians of {options.rounds} starts\n")
    rows = [_mesh(text, case, options.rounds) for text in options.meshes for case in options.cases]
    rows += [_star(text, case, options.rounds) for text in options.stars for case in options.cases]
    if rows:
        print(
            table(("engines", "", "seconds", "all lanes", "MiB", "files", "faulty", "failed"), rows)
        )
    if options.processes:
        _print_processes(options)
    if options.simulate:
        _print_simulation(options.simulate)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks/start/run")
    parser.add_argument("--meshes", nargs="*", default=_MESHES, metavar="RANKSxLANES")
    parser.add_argument("--stars", nargs="*", default=["512x8"], metavar="RANKSxLANES")
    parser.add_argument("--processes", nargs="*", type=int, default=[8, 32, 128])
    parser.add_argument("--simulate", nargs="*", type=int, default=[256, 1024, 4096])
    parser.add_argument("--cases", nargs="*", default=list(_CASES), choices=list(_CASES))
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _mesh(text: str, case: str, rounds: int) -> list[str]:
    size, lanes = map(int, text.split("x"))
    is_crowded, is_faulty = _CASES[case]
    starts = [
        engines.mesh(size, lanes, is_crowded=is_crowded, is_faulty=is_faulty) for _ in range(rounds)
    ]
    return _row(f"{size} ranks, {lanes} lane{'s' * (lanes > 1)}", case, starts, is_star=False)


def _star(text: str, case: str, rounds: int) -> list[str]:
    """Start the highest rank, which dials all others."""
    size, lanes = map(int, text.split("x"))
    is_crowded, is_faulty = _CASES[case]
    starts = [
        engines.star(size, lanes, size - 1, is_crowded=is_crowded, is_faulty=is_faulty)
        for _ in range(rounds)
    ]
    return _row(f"1 of {size} ranks, {lanes} lanes", case, starts, is_star=True)


def _row(name: str, case: str, starts: list[engines.Start], *, is_star: bool) -> list[str]:
    def middle(value: Callable[[engines.Start], float]) -> float:
        return median(value(start) for start in starts)

    for start in starts:
        if start.failures:
            print(f"{name}, {case}: {start.reason}")
    return [
        name,
        case,
        f"{middle(lambda start: start.seconds):.2f}",
        f"{middle(lambda start: start.all_lanes_seconds):.2f}" if is_star else "",
        f"{middle(lambda start: start.mebibytes):.0f}",
        f"{middle(lambda start: start.files):.0f}",
        f"{middle(lambda start: start.faulty):.0f}",
        f"{sum(start.failures > 0 for start in starts)} of {len(starts)}",
    ]


def _print_processes(options: argparse.Namespace) -> None:
    from benchmarks.start.processes import Parent  # imports torch

    parent = Parent()
    rows = []
    for size in options.processes:
        for backend in ("smdist", "gloo"):
            for case in options.cases if backend == "smdist" else [""]:
                is_crowded, is_faulty = _CASES[case]
                start = parent.start(backend, size, is_crowded=is_crowded, is_faulty=is_faulty)
                row = [f"{size} processes", backend, case, f"{start.seconds:.2f}"]
                rows.append([*row, f"{start.mebibytes:.0f}", str(start.failures)])
                if start.reason:
                    print(f"{backend}, {size} processes, {case}: {start.reason[:300]}")
    parent.end()
    print("\n" + table(("", "backend", "", "seconds", "MiB", "failed ranks"), rows))


def _print_simulation(sizes: list[int]) -> None:
    rows = []
    for size in sizes:
        joined, tuned = engines.alone(size, 16)
        traffic = rendezvous.simulate(size)
        total = traffic.bytes_to_rank_0 + (size - 1) * traffic.bytes_to_others
        rows.append(
            [
                f"{size} ranks",
                f"{joined} KiB",
                f"{tuned} KiB",
                f"{traffic.requests_of_rank_0}",
                f"{traffic.requests_of_others}",
                f"{traffic.bytes_to_others / 1024:.0f} KiB",
                f"{total / 2**20:.0f} MiB",
            ]
        )
    columns = (
        "simulated",
        "one engine",
        "tuned to 16 lanes",
        "requests of rank 0",
        "of each other rank",
        "bytes to each",
        "bytes to all",
    )
    print("\n" + table(columns, rows))


if __name__ == "__main__":
    main()
