# SPDX-License-Identifier: Apache-2.0
"""Command behind `make gpu`.

    make gpu                                   all parts, in order
    make gpu PART="collectives training"       some of them
    make gpu PYTHON=/opt/torch/bin/python      the interpreter that has torch
    make gpu WHEELS=/folder                    torch and other packages from wheels
    make gpu DEVICE=testdev                    on the tests' device, to try the command itself
    python -m gpu_run --prepare                the environment alone: the last line is its Python

Exits with 0 if all has passed, or if the machine has no GPU; with 1 if something has failed, with 2
if the machine lacks something.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from gpu_run import report, results, running
from gpu_run.interpreter import ROOT, Interpreter
from gpu_run.machine import found, has_gpu
from gpu_run.parts import PART_SECONDS, PARTS, Part, Place, Step
from gpu_run.report import PartReport, StepReport
from gpu_run.results import Result
from sagemaker_dist.errors import SetupError

NO_GPU = "make gpu: this machine has no NVIDIA GPU with its driver, so there is nothing to run."
NAMES = tuple(part.name for part in PARTS)
_SAID_LINES = 40


def main() -> int:
    options = _options()
    if options.device == "cuda" and not has_gpu():
        print(NO_GPU)
        return 0
    running.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what runs, as Ctrl-C does
    try:
        return _run_parts(options)
    except SetupError as error:
        running.end_all(signal.SIGTERM)  # the compilers of a build that took too long
        print(f"make gpu: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        running.end_all(signal.SIGTERM)
        print("\nmake gpu: interrupted; the parts that had ended are in the report.")
        return 130


def _run_parts(options: argparse.Namespace) -> int:
    folder = ROOT / "build" / "gpu"
    interpreter = Interpreter(folder)
    print(f"preparing {folder / 'venv'} and building the runtime", flush=True)
    remarks = interpreter.prepare(options.wheels)
    place = Place(
        python=interpreter.python,
        device=options.device,
        root=ROOT,
        results=folder / "logs",
        machine=found(interpreter.python, options.device),
    )
    place.results.mkdir(exist_ok=True)
    print("\n".join([*(place.machine.gpus or ["no GPU"]), *remarks]), flush=True)
    if options.prepare:
        print(interpreter.python)
        return 0
    has_passed = True
    for part in PARTS:
        if part.name in options.parts:
            ended = run_part(part, place, tuple(remarks))
            print(f"report: {report.keep(folder, ended, NAMES)}", flush=True)
            has_passed &= ended.has_passed
    return 0 if has_passed else 1


def run_part(
    part: Part, place: Place, remarks: tuple[str, ...], seconds: float = PART_SECONDS
) -> PartReport:
    """Run the steps of a part, which share its time; a step that fails stops no other."""
    print(f"\n=== {part.name}: {part.about}", flush=True)
    when, until = time.strftime("%Y-%m-%d %H:%M", time.gmtime()), time.monotonic() + seconds
    steps = tuple(_run_step(step, place, until) for step in part.steps(place))
    return PartReport(
        name=part.name,
        code=_code(place.root),
        when=when,
        device=place.device,
        machine=place.machine,
        remarks=remarks,
        steps=steps,
    )


def _run_step(step: Step, place: Place, until: float) -> StepReport:
    seconds = (until - time.monotonic()) * step.share
    if step.unavailable or seconds <= 0:
        reason = step.unavailable or "the part's time had run out"
        outcome = "skip" if step.unavailable else "fail"
        return _printed(step, [Result(name=step.name, outcome=outcome, seconds=0, said=reason)], 0)
    log, file = place.results / f"{step.name}.log", place.results / f"{step.name}.jsonl"
    file.unlink(missing_ok=True)
    if step.tables:
        step.tables.unlink(missing_ok=True)
    ended = running.run(step.command, _environ(step, file), place.root, log, seconds)
    given = results.read(log if step.reads == "output" else file)
    given += _of_the_command(step, ended, given, log)
    results.write(file, given)
    return _printed(step, given, ended.seconds)


def _environ(step: Step, file: Path) -> dict[str, str]:
    support = Path(__file__).parents[1]
    return {
        **os.environ,
        **step.environ,
        "PYTHONPATH": str(support),
        "PYTHONFAULTHANDLER": "1",  # a process that is aborted prints its stacks
        "PYTHONUNBUFFERED": "1",
        "SMDIST_TEST_RESULTS": str(file),
    }


def _of_the_command(
    step: Step, ended: running.Ended, given: list[Result], log: Path
) -> list[Result]:
    """Return the result of the command itself, where its tests do not tell it."""
    has_failed = ended.exit_code != 0
    is_explained = any(each.outcome == "fail" for each in given) and not ended.is_late
    if step.reads != "exit code" and (is_explained or not has_failed) and given:
        return []
    said = [
        f"the part's time ran out; the stacks of its processes are in {log}"
        if ended.is_late
        else f"exit code {ended.exit_code}, {len(given)} results; more in {log}"
    ]
    outcome = "fail" if has_failed or ended.is_late or step.reads != "exit code" else "pass"
    if outcome == "fail":
        said += log.read_text(errors="replace").splitlines()[-_SAID_LINES:]
    return [Result(name=step.name, outcome=outcome, seconds=ended.seconds, said="\n".join(said))]


def _printed(step: Step, given: list[Result], seconds: float) -> StepReport:
    """Print a line about a step, and return its report."""
    is_written = step.tables is not None and step.tables.exists()
    ended = StepReport(
        name=step.name,
        results=tuple(given),
        seconds=seconds,
        is_of_peer=step.is_of_peer,
        tables=step.tables.read_text() if is_written else "",
    )
    counts = ", ".join(f"{number} {outcome}" for outcome, number in ended.counts.items())
    print(f"{step.name}: {counts} in {seconds:.0f} s", flush=True)
    for result in ended.of("fail"):
        print(f"  failed: {result.name}", flush=True)
    return ended


def _code(root: Path) -> str:
    """Return the commit, and whether files have changed since; "unknown" without git."""
    git = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(git, capture_output=True, text=True, check=False, timeout=30)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("make gpu", description="Run what needs a GPU.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--device", choices=["cuda", "testdev"], default="cuda")
    parser.add_argument("--wheels", type=Path, help="a folder with torch, where python has none")
    parser.add_argument(
        "--prepare", action="store_true", help="make the environment, and run nothing"
    )
    options = parser.parse_args()
    if unknown := [name for name in options.parts if name not in NAMES]:
        parser.error(f"no part is called {' or '.join(unknown)}; there are {', '.join(NAMES)}")
    options.parts = options.parts or NAMES
    return options


if __name__ == "__main__":
    sys.exit(main())
