# SPDX-License-Identifier: Apache-2.0
"""Runner that plants faults one at a time and reports which test detects each.

A test detects a fault if it fails twice with the fault and passes without it. A test that also
fails without it is skipped from then on. Faults that the nearest tests miss are planted together
for runs of all tests, because one such run takes minutes; each failed test then runs with each
fault alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.planted_faults.faults import Fault
from benchmarks.planted_faults.nearest import nearest_tests
from benchmarks.planted_faults.workplace import BuildError, Workplace, variables

# The copy is already set up, so its set-up is not repeated; native tests run only for C++.
_WHOLE = ("make", "-o", ".venv/.sdk", "-o", ".venv/.runtime", "-o", "native-address", "test")
MISSED = "missed by nearest"
_NO_START = "(pytest did not start)"
_NO_COLLECTION = "(collection)"
_MOST_PASSED_OVER = 20  # tests that fail without a fault, before the run is given up
_MOST_FAILED = 20  # failed tests after which a run of all tests ends


@dataclass(frozen=True, slots=True)
class Seen:
    """Outcome of a test run.

    Attributes:
        failed: Tests that failed, or the one that was running at the time limit.
        num_run: Number of started tests.
        is_late: Whether the run exceeded its time limit.
    """

    failed: tuple[str, ...] = ()
    num_run: int = 0
    is_late: bool = False

    @property
    def test(self) -> str:
        """Return the first test that failed; empty if all passed."""
        return self.failed[0] if self.failed else ""


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

    def all_of(self, faults: Sequence[Fault]) -> None:
        """Judge faults without a result; with `whole` also those that the nearest tests missed."""
        self.results.parent.mkdir(parents=True, exist_ok=True)
        for fault in faults:
            if fault.id not in verdicts_in(self.results):
                self._record(self._with_nearest(fault))
        if self.whole:
            rows = verdicts_in(self.results)
            self._with_all([each for each in faults if rows[each.id]["verdict"] == MISSED])

    def _record(self, row: dict[str, object]) -> None:
        with self.results.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(row["id"], row["verdict"], row["test"], f"{row['seconds']:.0f} s", flush=True)

    def _row(self, fault: Fault, verdict: str, seen: Seen, begin: float) -> dict[str, object]:
        return {
            "id": fault.id,
            "commit": self.workplace.commit,
            "path": fault.mutant.path,
            "line": fault.mutant.line,
            "verdict": verdict,
            "test": seen.test,
            "num_run": seen.num_run,
            "is_late": seen.is_late,
            "seconds": round(time.monotonic() - begin, 1),
        }

    def _with_nearest(self, fault: Fault) -> dict[str, object]:
        """Plant a fault, run the nearest tests, restore the file, and return the result row."""
        begin = time.monotonic()
        self._prepare(fault.id)
        self._plant([fault])
        seen, verdict = Seen(), MISSED
        try:
            if fault.part == "core":
                seen = self._native(fault.mutant.path)
            if not seen.test:
                seen = self._nearest(fault.mutant.path)
            if seen.test:
                verdict = "caught by nearest"
        except BuildError as error:
            verdict, seen = "does not build", Seen((str(error),))
        finally:
            self._restore([fault])
        return self._row(fault, verdict, seen, begin)

    def _with_all(self, faults: Sequence[Fault]) -> None:
        """Run all tests with the faults planted together until no fault makes a test fail.

        A fault that alone makes a failed test fail is caught, and is not planted in the next run.
        """
        remaining = list(faults)
        while remaining:
            begin = time.monotonic()
            self._prepare("together")
            self._plant(remaining)
            if any(each.part == "core" for each in remaining):
                self.workplace.build_bindings(self._log)
            seen = self._tests(list(_WHOLE), self.seconds_whole, most_failed=_MOST_FAILED)
            self._restore(remaining)
            if not seen.failed:
                for fault in remaining:
                    self._record(self._row(fault, "not caught", seen, begin))
                return
            caught = [each for each in remaining if self._is_caught(each, seen.failed)]
            if not caught:
                self._pass_over(seen.failed)
            remaining = [each for each in remaining if each not in caught]

    def _is_caught(self, fault: Fault, tests: Sequence[str]) -> bool:
        begin = time.monotonic()
        self._prepare(fault.id)
        self._plant([fault])
        try:
            if fault.part == "core":
                self.workplace.build_bindings(self._log)
            command = self._pytest(tests)
            if {_NO_START, _NO_COLLECTION} & {*tests}:
                command = self._pytest(["--collect-only", "tests"])
            seen = self._confirmed(fault.mutant.path, command, self.seconds_nearest)
        finally:
            self._restore([fault])
        if seen.test:
            self._record(self._row(fault, "caught by whole", seen, begin))
        return bool(seen.test)

    def _prepare(self, log: str) -> None:
        self._log = self.workplace.root / "build/logs" / f"{log}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        if not self._has_bindings:
            self.workplace.take_bindings(self._log)
            self._has_bindings = True

    def _plant(self, faults: Sequence[Fault]) -> None:
        for path in {each.mutant.path for each in faults}:
            text = (self.workplace.tree / path).read_text()
            mutants = [each.mutant for each in faults if each.mutant.path == path]
            # the last line first, so that the others keep their numbers
            for mutant in sorted(mutants, key=lambda each: -each.line):
                text = mutant.planted_in(text)
            self.workplace.write(path, text)

    def _restore(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self.workplace.restore(fault.mutant.path)
            if fault.part == "core":
                self._has_bindings = False  # the next run needs bindings without this fault

    # C++

    def _native(self, path: str) -> Seen:
        """Run the native tests; if none fails, leave bindings that contain the fault."""
        build = self.workplace.build_native(self._log)
        test = self._first_of_ctest(build, ())
        if test:
            again = self._first_of_ctest(build, ("-R", f"^{test}$"))
            self._clean(path, native=True)
            fails_without = self._first_of_ctest(build, ("-R", f"^{test}$"))
            self._dirty(path)
            if again and not fails_without:
                return Seen((f"ctest {test}",))
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

    def _pytest(self, tests: Sequence[str]) -> list[str]:
        return [str(self.workplace.bin / "python"), "-m", "pytest", "-q", *tests]

    def _confirmed(self, path: str, command: list[str], seconds: float) -> Seen:
        """Run tests until one fails only with the fault, or none fails."""
        while True:
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
            self._pass_over([seen.test])

    def _pass_over(self, tests: Sequence[str]) -> None:
        self.passed_over += tests
        if len(self.passed_over) > _MOST_PASSED_OVER:
            raise RuntimeError(f"too many tests fail without a fault: {self.passed_over}")

    def _single(self, test: str, command: list[str]) -> list[str]:
        """Return the command for one test, or for collection if pytest did not reach a test."""
        if test in (_NO_START, _NO_COLLECTION):
            paths = command[4:] if command[1:3] == ["-m", "pytest"] else ["tests"]
            return self._pytest(["--collect-only", *paths])
        return self._pytest([test])

    def _tests(self, command: list[str], seconds: float, most_failed: int = 1) -> Seen:
        record = self.workplace.root / "build/record.json"
        record.unlink(missing_ok=True)
        environment = variables(record, self.passed_over, most_failed)
        code = self.workplace.run(command, seconds, self._log, **environment)
        if not record.exists():
            return Seen((_NO_START,), is_late=code is None)
        state = json.loads(record.read_text())
        num_run = state["num_run"]
        failed = tuple(dict.fromkeys(state["failed"]))
        if code is None:
            return Seen((*failed, state["started"]), num_run, is_late=True)
        if not failed and (not state["is_over"] or code not in (0, 5)):
            failed = (state["started"] or _NO_COLLECTION,)  # pytest itself was ended
        return Seen(failed, num_run)


def verdicts_in(results: Path) -> dict[str, dict[str, object]]:
    """Return the last row of each fault."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {row["id"]: row for row in map(json.loads, lines)}
