# SPDX-License-Identifier: Apache-2.0
"""Command line of the planted stream bugs: build, run, and write the table in docs/testing.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.planted_stream_bugs.bugs import BUGS
from benchmarks.planted_stream_bugs.planting import ROOT, build

_PAGE = ROOT / "docs/testing.md"
_BEGIN, _END = "<!-- begin: written by make stream-bugs -->", "<!-- end: stream bugs -->"


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
    for number in options.only or range(1, len(BUGS) + 1):
        found = _judge(runtime, number, options.schedules)
        known[BUGS[number - 1].name] = [found["failed"], options.schedules]
        print(f"{number}: {found['failed']} of {options.schedules}: {found['first']}", flush=True)
        results.write_text(json.dumps(known, indent=1))
    if options.right:
        right = _judge(runtime, 0, options.right)
        known[""] = [right["failed"], options.right]
        print(f"right code: {right['failed']} failures in {options.right} schedules", flush=True)
        results.write_text(json.dumps(known, indent=1))
    names = [bug.name for bug in BUGS]
    if all(name in known for name in ("", *names)):
        _write(_table(names, known))
    missed = [name for name in names if name in known and known[name][0] < known[name][1]]
    sys.exit(1 if missed or known.get("", [0])[0] else 0)


def _judge(runtime: Path, bug: int, schedules: int) -> dict[str, Any]:
    path = [str(runtime), str(ROOT / "tests/support"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", f"{__package__}.judge", str(bug), str(schedules)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(path)}
    log = subprocess.DEVNULL  # stacks of ranks that hang
    done = subprocess.run(command, env=environ, check=True, stdout=subprocess.PIPE, stderr=log)
    return json.loads(done.stdout.splitlines()[-1])


def _table(names: list[str], known: dict[str, list[int]]) -> str:
    rows = [f"| {name} | {known[name][0]} of {known[name][1]} |" for name in names]
    failed, schedules = known[""]
    rows.append(f"| none: the right code | {failed} of {schedules:,} |")
    return "\n".join(["| bug | schedules that fail |", "|---|---|", *rows])


def _write(table: str) -> None:
    text = _PAGE.read_text()
    before, rest = text.split(_BEGIN)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{table}\n\n{_END}{rest.split(_END)[1]}")


if __name__ == "__main__":
    main()
