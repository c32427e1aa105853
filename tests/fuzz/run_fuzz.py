# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzz targets.

    run_fuzz.py long                every target until it has FUZZ_EXECUTIONS; goes on where it was
    run_fuzz.py sample SECONDS      the targets in C++ for so many seconds together
    run_fuzz.py pack                the smallest inputs that reach everything, into the corpora
    run_fuzz.py table               what has been reached so far

`FUZZ_EXECUTIONS` is 10 million for a parser and a reader in Python; the other targets, which hold
a conversation for each input, run a tenth of it. `FUZZ_ONLY` names a few targets.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fuzz_targets import WORK, FuzzedTarget, Run, native_targets, python_targets
from hex_corpus import unpack, write_inputs

STATE = WORK / "state.json"
SLICE_SECONDS = 60
CONVERSATIONS = 10  # a parser runs so many times as often as a target that holds a conversation
MERGE_SECONDS = 900


def targets() -> list[FuzzedTarget]:
    only = os.environ.get("FUZZ_ONLY", "").split()
    found = [*native_targets(), *python_targets()]
    return [each for each in found if not only or each.name in only]


def wanted(target: FuzzedTarget) -> int:
    executions = int(os.environ.get("FUZZ_EXECUTIONS") or 10_000_000)
    return executions if target.is_parser else executions // CONVERSATIONS


def load() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(STATE.read_text()) if STATE.exists() else {}
    return found


def add(target: FuzzedTarget, run: Run, seconds: float) -> dict[str, Any]:
    """Add a run to what has been reached, and return the sum for the target."""
    state = load()
    so_far = state.setdefault(
        target.name, {"executions": 0, "seconds": 0, "edges": 0, "findings": 0}
    )
    so_far["executions"] += run.executions
    so_far["seconds"] += round(seconds)
    so_far["edges"] = max(so_far["edges"], run.edges)
    so_far["findings"] += run.failed
    STATE.parent.mkdir(parents=True, exist_ok=True)
    part = STATE.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1))
    part.replace(STATE)
    return so_far


def fuzz(target: FuzzedTarget, seconds: float, executions: int) -> Run:
    """Fuzz from the corpus and what earlier runs have found."""
    unpack(target.corpus, target.inputs)
    options = [f"-max_total_time={max(1, round(seconds))}", f"-runs={executions}", "-reload=0"]
    begin = time.monotonic()
    run = target.fuzz(options, target.inputs, seconds=seconds)
    sums = add(target, run, time.monotonic() - begin)
    print(
        f"{target.name}: {sums['executions']:,} executions, {run.edges:,} edges",
        "FAILED" if run.failed else "",
        flush=True,
    )
    if run.failed:
        print(f"{run.output[-6000:]}\nThe input is in {WORK / 'findings'}.", flush=True)
    return run


def run_long() -> int:
    """Run each target for a minute in turn, until all have their number of executions.

    A target that fails is left out until the next call.
    """
    failed: set[str] = set()
    todo = targets()
    while todo:
        for target in todo:
            done = load().get(target.name, {}).get("executions", 0)
            if done < wanted(target):
                run = fuzz(target, SLICE_SECONDS, wanted(target) - done)
                failed |= {target.name} if run.failed else set()
        state = load()
        todo = [
            each
            for each in todo
            if each.name not in failed
            and state.get(each.name, {}).get("executions", 0) < wanted(each)
        ]
    print_table()
    return bool(failed)


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


def print_table() -> int:
    print("| target | executions | seconds | edges | findings |\n|---|---|---|---|---|")
    for name, sums in load().items():
        cells = (
            name,
            *(f"{sums[key]:,}" for key in ("executions", "seconds", "edges", "findings")),
        )
        print(f"| {' | '.join(cells)} |")
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
            return print_table()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
