# SPDX-License-Identifier: Apache-2.0
"""Runner that plants faults one at a time and reports which test detects each.

A test detects a fault if it fails twice with the fault and passes without it. A test that also
fails without it is skipped from then on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.planted_faults.faults import Fault
from benchmarks.planted_faults.nearest import nearest_tests
from benchmarks.planted_faults.workplace import BuildError, Workplace, variables

# The copy is already set up, so its set-up is not repeated; native tests run only for C++.
_WHOLE = ("make", "-o", ".venv/.sdk", "-o", ".venv/.runtime", "-o", "native-address", "test")
_NO_START = "(pytest did not start)"
_NO_COLLECTION = "(collection)"
_MOST_PASSED_OVER = 20  # tests that fail without a fault, before the run is given up


@dataclass(frozen=True, slots=True)
class Seen:
    """Outcome of a test run.

    Attributes:
        test: The test that failed, or that was running at the time limit; empty if all passed.
        num_run: Number of started tests.
        is_late: Whether the run exceeded its time limit.
    """

    test: str = ""
    num_run: int = 0
    is_late: bool = False


@dataclass(kw_only=True)
class Judge:
    """Judge with one workplace, which appends a JSON line for each fault to `results`."""

    workplace: Workplace
    results: Path
    whole: bool
    seconds_nearest: float
    seconds_whole: float
    passed_over: list[str] = field(default_factory=list)
    _has_bindings: bool = False
    _log: Path = Path()

    def all_of(self, faults: Iterable[Fault]) -> None:
        """Judge faults without a result; with `whole` also those that the nearest tests missed."""
        self.results.parent.mkdir(parents=True, exist_ok=True)
        for fault in faults:
            known = verdicts_in(self.results).get(fault.id)
            if known is None or (self.whole and known["verdict"] == "missed by nearest"):
                row = self.one(fault, skips_nearest=known is not None)
                with self.results.open("a") as out:
                    out.write(json.dumps(row) + "\n")
                print(row["id"], row["verdict"], row["test"], f"{row['seconds']:.0f} s", flush=True)

    def one(self, fault: Fault, *, skips_nearest: bool = False) -> dict[str, object]:
        """Plant a fault, run tests, restore the file, and return the result row."""
        begin = time.monotonic()
        mutant = fault.mutant
        self._log = self.workplace.root / "build/logs" / f"{fault.id}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if not self._has_bindings:
            self.workplace.take_bindings(self._log)
            self._has_bindings = True
        source = (self.workplace.tree / mutant.path).read_text()
        self.workplace.write(mutant.path, mutant.planted_in(source))
        seen, verdict = Seen(), "missed by nearest"
        try:
            if fault.part == "core":
                seen = self._native(mutant.path, skips_nearest)
            if not seen.test and not skips_nearest:
                seen = self._nearest(mutant.path)
            if seen.test:
                verdict = "caught by nearest"
            elif self.whole:
                seen = self._whole(mutant.path)
                verdict = "caught by whole" if seen.test else "not caught"
        except BuildError as error:
            verdict, seen = "does not build", Seen(str(error))
        finally:
            self._restore(fault)
        return {
            "id": fault.id,
            "commit": self.workplace.commit,
            "path": mutant.path,
            "line": mutant.line,
            "verdict": verdict,
            "test": seen.test,
            "num_run": seen.num_run,
            "is_late": seen.is_late,
            "seconds": round(time.monotonic() - begin, 1),
        }

    def _restore(self, fault: Fault) -> None:
        self.workplace.restore(fault.mutant.path)
        if fault.part == "core":
            self._has_bindings = False  # the next Python fault needs bindings without this fault

    # C++

    def _native(self, path: str, skips_tests: bool) -> Seen:
        """Run the native tests; if none fails, leave bindings that contain the fault."""
        build = self.workplace.build_native(self._log)
        test = "" if skips_tests else self._first_of_ctest(build, ())
        if test:
            again = self._first_of_ctest(build, ("-R", f"^{test}$"))
            self._clean(path, native=True)
            fails_without = self._first_of_ctest(build, ("-R", f"^{test}$"))
            self._dirty(path)
            if again and not fails_without:
                return Seen(f"ctest {test}")
        self.workplace.build_bindings(self._log)
        return Seen()

    def _first_of_ctest(self, build: Path, more: Sequence[str]) -> str:
        failed = build / "Testing/Temporary/LastTestsFailed.log"
        failed.unlink(missing_ok=True)
        command = [self.workplace.bin / "ctest", "--test-dir", build, "--stop-on-failure", *more]
        code = self.workplace.run(command, self.seconds_nearest, self._log)
        if code == 0:
            return ""
        names = failed.read_text().splitlines() if failed.exists() else []
        return names[0].partition(":")[2] if names else "all"

    def _clean(self, path: str, *, native: bool = False) -> None:
        self._planted = (self.workplace.root / path).read_text()
        self.workplace.restore(path)
        if native:
            self.workplace.build_native(self._log)
        elif path.endswith((".cc", ".h")):
            self.workplace.build_bindings(self._log)

    def _dirty(self, path: str, *, binds: bool = False) -> None:
        self.workplace.write(path, self._planted)
        if binds and path.endswith((".cc", ".h")):
            self.workplace.build_bindings(self._log)

    # pytest

    def _nearest(self, path: str) -> Seen:
        tests = nearest_tests(self.workplace.root, path)
        if not tests:
            return Seen()
        return self._confirmed(path, self._pytest(tests), self.seconds_nearest)

    def _whole(self, path: str) -> Seen:
        return self._confirmed(path, list(_WHOLE), self.seconds_whole)

    def _pytest(self, tests: Sequence[str]) -> list[str]:
        return [str(self.workplace.bin / "python"), "-m", "pytest", "-q", *tests]

    def _confirmed(self, path: str, command: list[str], seconds: float) -> Seen:
        """Run tests until one fails only with the fault, or none fails."""
        for _ in range(_MOST_PASSED_OVER):
            seen = self._tests(command, seconds)
            if not seen.test or seen.is_late:
                return seen
            single = self._single(seen.test, command)
            fails_again = bool(self._tests(single, self.seconds_nearest).test)
            self._clean(path)
            fails_without = bool(self._tests(single, self.seconds_nearest).test)
            self._dirty(path, binds=True)
            if fails_again and not fails_without:
                return seen
            self.passed_over.append(seen.test)
        raise RuntimeError(f"too many tests fail without a fault: {self.passed_over}")

    def _single(self, test: str, command: list[str]) -> list[str]:
        """Return the command for one test, or for collection if pytest did not reach a test."""
        if test in (_NO_START, _NO_COLLECTION):
            paths = command[4:] if command[1:3] == ["-m", "pytest"] else ["tests"]
            return self._pytest(["--collect-only", *paths])
        return self._pytest([test])

    def _tests(self, command: list[str], seconds: float) -> Seen:
        record = self.workplace.root / "build/record.json"
        record.unlink(missing_ok=True)
        environment = variables(record, self.passed_over)
        code = self.workplace.run(command, seconds, self._log, **environment)
        if not record.exists():
            return Seen(_NO_START, is_late=code is None)
        state = json.loads(record.read_text())
        num_run = state["num_run"]
        if code is None:
            return Seen(state["started"], num_run, is_late=True)
        if state["failed"]:
            return Seen(state["failed"][0], num_run)
        if not state["is_over"] or code not in (0, 5):
            return Seen(state["started"] or _NO_COLLECTION, num_run)  # pytest itself was ended
        return Seen(num_run=num_run)


def verdicts_in(results: Path) -> dict[str, dict[str, object]]:
    """Return the last row of each fault."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {row["id"]: row for row in map(json.loads, lines)}
