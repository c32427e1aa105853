# SPDX-License-Identifier: Apache-2.0
"""Command line of the planted stream bugs: build, run, and write the table in docs/testing.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.planted_stream_bugs.bugs import BUGS
from benchmarks.planted_stream_bugs.planting import ROOT, build

_PAGE = ROOT / "docs/testing.md"
_BEGIN, _END = "<!-- begin: written by make stream-bugs -->", "<!-- end: stream bugs -->"
_NAMES = {0: "none: the right code", **{n: bug.name for n, bug in enumerate(BUGS, 1)}}


def main() -> None:
    """Judge the bugs of the command line, all by default, and the right code."""
    parser = argparse.ArgumentParser(prog="benchmarks/planted_stream_bugs/run", description=__doc__)
    parser.add_argument("--only", type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--schedules", type=int, default=20, help="for each bug")
    parser.add_argument("--right", type=int, default=1000, help="schedules of the right code")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/planted_stream_bugs")
    options = parser.parse_args()
    runtime = build(options.scratch)
    results = options.scratch / "results.json"
    known = json.loads(results.read_text()) if results.exists() else {}
    wanted = [f"{bug}:{options.schedules}" for bug in options.only or range(1, len(BUGS) + 1)]
    for found in _judged(runtime, [*wanted, f"0:{options.right}"] if options.right else wanted):
        name = _NAMES[found["bug"]]
        known[name] = [found["failed"], found["schedules"]]
        print(f"{name}: {found['failed']} of {found['schedules']}: {found['first']}", flush=True)
        results.write_text(json.dumps(known, indent=1))
    if known.keys() >= set(_NAMES.values()):
        _write(_table(known))
    right = known.pop(_NAMES[0], [0, 0])
    sys.exit(1 if right[0] or any(failed < all_of for failed, all_of in known.values()) else 0)


def _judged(runtime: Path, wanted: list[str]) -> Iterator[dict[str, Any]]:
    path = [str(runtime), str(ROOT / "tests/support"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", f"{__package__}.judge", *wanted]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    log = subprocess.DEVNULL  # stacks of ranks that hang
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=log) as judge:
        for line in judge.stdout or ():
            yield json.loads(line)
    if judge.returncode:
        sys.exit(f"the judge ended with status {judge.returncode}")


def _table(known: dict[str, list[int]]) -> str:
    names = [*list(_NAMES.values())[1:], _NAMES[0]]
    rows = [f"| {name} | {known[name][0]} of {known[name][1]:,} |" for name in names]
    return "\n".join(["| bug | schedules that fail |", "|---|---|", *rows])


def _write(table: str) -> None:
    text = _PAGE.read_text()
    before, rest = text.split(_BEGIN)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{table}\n\n{_END}{rest.split(_END)[1]}")


if __name__ == "__main__":
    main()
