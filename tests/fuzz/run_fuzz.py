# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets.

    run_fuzz.py long                every target until reached.json has FUZZ_EXECUTIONS
    run_fuzz.py sample SECONDS      the targets in C++ for so many seconds together
    run_fuzz.py pack                the smallest inputs that reach everything, into the corpora
    run_fuzz.py table               the table in docs/testing.md, from reached.json

`FUZZ_EXECUTIONS` is 10 million for a parser and a reader in Python; the other targets, which hold
a conversation for each input, run a tenth of it. Of the executions of a reader in Python one in a
hundred measures coverage, and the others are mutations of what those have found. `FUZZ_ONLY`
names a few targets, in the order in which they run; `FUZZ_PROCESSES` is the number that run at
once, by default one on each processor.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fuzz_targets import WORK, FuzzedTarget, Run, native_targets, python_targets
from hex_corpus import unpack, write_inputs

REACHED = Path(__file__).with_name("reached.json")
PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BEGIN, END = "<!-- begin: written by make fuzz -->\n", "<!-- end -->\n"
SLICE_SECONDS = 300  # the imports of a reader in Python take up to 10 s
MUTATIONS = 100  # of an input of a reader in Python run beside one that measures coverage
CONVERSATIONS = 10  # a parser runs so many times as often as a target that holds a conversation
MERGE_SECONDS = 900


def targets() -> list[FuzzedTarget]:
    only = os.environ.get("FUZZ_ONLY", "").split()
    found = native_targets()
    if not only or {*only} - {each.name for each in found}:  # to list readers takes their imports
        found += python_targets()
    if not only:
        return found
    named = [each for each in found if each.name in only]
    return sorted(named, key=lambda each: only.index(each.name))


def wanted(target: FuzzedTarget) -> int:
    executions = int(os.environ.get("FUZZ_EXECUTIONS") or 10_000_000)
    return executions if target.is_parser else executions // CONVERSATIONS


def load() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(REACHED.read_text()) if REACHED.exists() else {}
    return found


def add(target: FuzzedTarget, run: Run, seconds: float, *, is_mutated: bool) -> None:
    """Add a run to what has been reached.

    Several of these programs may run at once: a locked file lets one after the other add.
    """
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "reached.lock").open("w") as adding:
        fcntl.flock(adding, fcntl.LOCK_EX)
        reached = load()
        sums = reached.setdefault(target.name, {"executions": 0, "seconds": 0, "findings": 0})
        sums["executions"] += run.executions
        if is_mutated:
            sums["mutated"] = sums.get("mutated", 0) + run.executions
        sums["seconds"] += round(seconds)
        sums["edges"] = run.edges or sums.get("edges", 0)
        sums["findings"] += run.failed
        part = REACHED.with_suffix(".part")
        part.write_text(json.dumps(reached, indent=1) + "\n")
        part.replace(REACHED)


def fuzz(target: FuzzedTarget, seconds: float, executions: int) -> Run:
    """Fuzz from the corpus and what earlier runs have found."""
    unpack(target.corpus, target.inputs)
    options = [f"-max_total_time={max(1, round(seconds))}", f"-runs={executions}", "-reload=0"]
    run = target.fuzz(options, target.inputs, seconds=seconds)
    _print(target, run, f"{run.edges:,} edges")
    return run


def mutate(target: FuzzedTarget, seconds: float, executions: int, seed: int) -> Run:
    """Run a reader in Python on mutations of the corpus and of what earlier runs have found."""
    unpack(target.corpus, target.inputs)
    run = target.mutate(executions, seed, seconds=seconds)
    _print(target, run, "without coverage")
    return run


def _print(target: FuzzedTarget, run: Run, kind: str) -> None:
    failed = " FAILED" if run.failed else ""
    print(f"{target.name}: {run.executions:,} executions, {kind}{failed}", flush=True)
    if run.failed:
        print(f"{run.output[-6000:]}\nThe input is in {WORK / 'findings'}.", flush=True)


def run_long() -> int:
    """Run targets for five minutes in turn, one on each processor, until all have their executions.

    A target that fails is left out until the next call.
    """
    processes = int(os.environ.get("FUZZ_PROCESSES") or os.cpu_count() or 1)
    with ThreadPoolExecutor(processes) as processors:
        todo = targets()
        failed = False
        while todo:
            todo = [
                each
                for each in todo
                if load().get(each.name, {}).get("executions", 0) < wanted(each)
            ]
            runs = dict(zip(todo, processors.map(_slice, todo), strict=True))
            failed |= any(run.failed for run in runs.values())
            todo = [each for each, run in runs.items() if not run.failed]
    write_table()
    return failed


def _slice(target: FuzzedTarget) -> Run:
    sums = load().get(target.name, {})
    done = sums.get("executions", 0)
    guided = done - sums.get("mutated", 0)
    is_mutated = target.is_python and guided * MUTATIONS >= wanted(target)
    begin = time.monotonic()
    if is_mutated:
        run = mutate(target, SLICE_SECONDS, wanted(target) - done, seed=done)
    else:
        run = fuzz(target, SLICE_SECONDS, wanted(target) - done)
    add(target, run, time.monotonic() - begin, is_mutated=is_mutated)
    return run


def run_sample(seconds: float) -> int:
    """Run each target in C++ for its share of the time."""
    todo = native_targets()
    return max(fuzz(each, seconds / len(todo), -1).failed for each in todo)


def pack() -> int:
    """Reduce what each target has found to few inputs, and write them into its corpus."""
    for target in targets():
        unpack(target.corpus, target.inputs)
        with tempfile.TemporaryDirectory(prefix="smdist-fuzz-") as name:
            kept = target.inputs
            if not target.is_python:  # atheris cannot merge, and finds fewer
                kept = Path(name)
                run = target.fuzz(["-merge=1"], kept, target.inputs, seconds=MERGE_SECONDS)
                if run.failed:
                    print(run.output[-3000:])
                    return 1
            count = write_inputs(target.corpus, [each.read_bytes() for each in kept.iterdir()])
        print(f"{target.corpus.name}: {count} inputs, {target.corpus.stat().st_size:,} bytes")
    return 0


def write_table() -> int:
    """Write what has been reached into the documentation."""
    reached = load()
    lines = [
        "| target | executions | of them without coverage | seconds | edges | findings |",
        "|---|---|---|---|---|---|",
    ]
    for name in [each.name for each in (*native_targets(), *python_targets())]:
        sums = reached.get(name, {})
        keys = ("executions", "mutated", "seconds", "edges", "findings")
        lines.append(f"| `{name}` | {' | '.join(f'{sums.get(key, 0):,}' for key in keys)} |")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n".join(["", *lines, "", ""]) + END + after)
    return 0


def main() -> int:
    match sys.argv[1:]:
        case ["long"]:
            return run_long()
        case ["sample", seconds]:
            return run_sample(float(seconds))
        case ["pack"]:
            return pack()
        case ["table"]:
            return write_table()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
