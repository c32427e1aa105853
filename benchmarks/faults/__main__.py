# SPDX-License-Identifier: Apache-2.0
"""Command line of the faults: runs the rows, prints them, and writes docs/reliability.md.

    make faults                              # all rows that have no result yet
    make faults ROWS="partition rank_gets"   # rows whose names have one of these parts, again

Results are in build/faults/results.json, so that a run goes on where it was stopped: remove that
file to run all rows anew. The page is written when every row has a result. Needs root.

Rows with short time limits run first, one after the other, but for the end of a job beside the
start of the next one; then all others, several at a time, of which one starts at a time.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import groupby

from benchmarks.faults.fault_row import Row, Seen
from benchmarks.faults.page import line, write_page
from benchmarks.faults.play import play
from benchmarks.faults.results import Results
from benchmarks.faults.rows import ROWS
from benchmarks.harness.hosts import EmulatedHosts

_HOSTS = 4
_RATE = "10gbit"

Work = tuple[Sequence[Row], str]  # rows that share a job, and their framework


def main() -> None:
    """Run what the command line names; exit with 1 if a row is not as it should be."""
    options = _options()
    results = Results.read()
    work = [each for each in jobs() if _is_wanted(each, options.rows, results)]
    print(f"{len(work)} jobs", flush=True)
    alone = [each for each in work if each[0][0].is_alone]
    others = [each for each in work if not each[0][0].is_alone]
    if _run(alone, results, 2):
        _run(others, results, options.lanes)
    wrong = results.wrong(ROWS)
    print(f"\n{len(results)} results, {len(wrong)} not as they should be")
    for name, complaints in wrong:
        print(f"* {name}: {'; '.join(complaints)}")
    missing = [f"{row.name}, {each}" for row in ROWS for each in row.frameworks
               if results.get(row, each) is None]  # fmt: skip
    print(*[f"* {name}: no result yet" for name in missing], sep="\n")
    if not missing:
        write_page(results)
    sys.exit(1 if wrong or missing else 0)


def jobs() -> Iterator[Work]:
    """Yield the rows that share a job, for each framework."""
    for framework in ("torch", "tensorflow"):
        rows = [row for row in ROWS if framework in row.frameworks]
        for name, group in groupby(rows, key=lambda row: row.together or row.name):
            assert name
            yield list(group), framework


def _is_wanted(work: Work, parts: Sequence[str], results: Results) -> bool:
    rows, framework = work
    if not parts:
        return any(results.get(row, framework) is None for row in rows)
    names = [f"{row.name}, {framework}".replace(" ", "_") for row in rows]
    return any(part in name for part in parts for name in names)


def _run(work: Sequence[Work], results: Results, lanes: int) -> bool:
    """Run jobs in several threads, each with emulated hosts of its own.

    One job starts at a time, and none while a row is measured that must be alone. Return False if
    Ctrl-C ended it early.
    """
    todo: queue.SimpleQueue[Work] = queue.SimpleQueue()
    for each in work:
        todo.put(each)
    printing, machine = threading.Lock(), threading.Lock()
    threads = [
        threading.Thread(target=_serve, args=(number, todo, machine, printing, results))
        for number in range(min(lanes, len(work)))
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
        return True
    except KeyboardInterrupt:
        while not todo.empty():
            todo.get()
        print("ends after the rows that run now", flush=True)
        for thread in threads:
            thread.join()
        return False


def _serve(
    number: int,
    todo: queue.SimpleQueue[Work],
    machine: threading.Lock,
    printing: threading.Lock,
    results: Results,
) -> None:
    network = f"10.{91 + number}.0"
    with EmulatedHosts(_HOSTS, _RATE, name=f"ft{number}", network=network) as emulated:
        while True:
            try:
                rows, framework = todo.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            try:
                seen = play(rows, framework, emulated, machine)
            except Exception as error:
                failed = [f"the row itself failed: {error!r}"]
                seen = [Seen(complaints=failed, has_started=False) for _ in rows]
            with printing:
                for row, each in zip(rows, seen, strict=True):
                    if each.has_started:  # else it is no result, and the next call runs it again
                        results.add(row, framework, each)
                    print(line(row, framework, each), flush=True)
                    if each.complaints:
                        print(f"    WRONG: {'; '.join(each.complaints)}", flush=True)
                        print(each.stacks, flush=True)
                print(f"    ({time.monotonic() - began:.0f} s in all)", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("rows", nargs="*", help="parts of names; spaces are written as _")
    several = "jobs at the same time, of those that need not be alone"
    parser.add_argument("--lanes", type=int, default=3, help=several)
    return parser.parse_args()


if __name__ == "__main__":
    main()
