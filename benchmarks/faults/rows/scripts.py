# SPDX-License-Identifier: Apache-2.0
"""Rows: what a script does, on one rank or on all."""

from __future__ import annotations

from typing import Any

from benchmarks.faults.actions import VICTIM
from benchmarks.faults.fault_row import (
    AT_ONCE_SECONDS,
    BOTH,
    CRASH_SECONDS,
    ELSE_SECONDS,
    TORCH,
    Expected,
    Row,
)

_OTHERS = {"kinds": ("lost", "left"), "culprits": (VICTIM,), "silent": (VICTIM,)}
_DISAGREE = "tests/runtime/dataparallel/test_disagreement.py::"
_NAMED = f"{_DISAGREE}test_a_rank_that_left_is_named"


def _ends(name: str, fault: str, test: str, *, both: bool = False, **more: Any) -> Row:
    fields = {"within": CRASH_SECONDS, **_OTHERS, **more}
    return Row(
        name=name,
        script={"fault": fault},
        expected=Expected(**fields),
        test=test,
        frameworks=BOTH if both else TORCH,
    )


def _differs(what: str, fault: str) -> Row:
    return Row(
        name=f"one rank passes another {what}",
        script={"fault": fault},
        expected=Expected(
            within=AT_ONCE_SECONDS,
            kinds=("usage",),
            survives=True,
            lost="that call; the next one works",
        ),
        test=f"{_DISAGREE}test_every_rank_raises_and_names_both_sides_and_the_next_call_works",
        frameworks=BOTH,
        together="disagreements",
    )


def _late(name: str, fault: str, test: str, *, both: bool = False) -> Row:
    return Row(
        name=f"{name}, timeout of 12 s",
        script={"fault": fault},
        options={"timeout_seconds": 12},
        expected=Expected(
            within=ELSE_SECONDS, kinds=("timeout",), culprits=(VICTIM,), silent=(VICTIM,)
        ),
        test=test,
        frameworks=BOTH if both else TORCH,
    )


def _goes_on(name: str, then: str, fault: str, **fields: Any) -> Row:
    return Row(
        name=name,
        script={"fault": fault, "then": then},
        expected=Expected(**{"within": CRASH_SECONDS, **_OTHERS, **fields}),
        test="tests/runtime/dataparallel/test_fault_rows.py::test_survivors_make_a_new_world",
    )


ROWS = (
    _ends("rank raises an exception", "raise", "tests/integration/test_digits.py::"
          "test_an_exception_is_the_failure_reason", both=True, kinds=("aborted", "raised"),
          silent=(), reason={"rank": VICTIM, "kind": "raised"}),
    _ends("rank gets SIGINT", "interrupt", "tests/runtime/tensorflow/test_interrupts.py::"
          "test_a_function_that_waits_is_interrupted_and_others_hear_by_whom", both=True,
          kinds=("aborted", "raised"), silent=()),
    _ends("rank exits with 0 too early", "exit 0", _NAMED, both=True, within=1.5,
          lost="the job ends; without an error of the rank itself"),
    _ends("rank exits with 3", "exit 3", _NAMED, reason={"rank": VICTIM, "exit_code": 3}),
    _ends("rank crashes (SIGSEGV)", "segfault", _NAMED, reason={"rank": VICTIM, "exit_code": 139}),
    _ends("rank crashes (SIGBUS)", "bus error", _NAMED, reason={"rank": VICTIM, "exit_code": 135}),
    _ends("parent of a fork killed, child lives on", "fork",
          "tests/runtime/dataparallel/test_fault_rows.py::test_a_rank_that_ends_is_named"),
    _ends("rank leaves its group and lives on", "leave", _NAMED, within=1.5),
    _ends("script aborts", "abort", "tests/native/faults_test.cc::an_abort_reaches_every_rank",
          kinds=("aborted", "raised"), silent=()),
    _late("rank that never comes (sleeps)", "sleep",
          "tests/runtime/dataparallel/test_errors.py::"
          "test_a_missing_rank_is_named_after_the_timeout", both=True),
    _late("rank that never comes (endless loop)", "spin",
          "tests/runtime/dataparallel/test_errors.py::"
          "test_a_missing_rank_is_named_after_the_timeout"),
    Row(
        name="rank comes 20 s late",
        script={"fault": "late"},
        expected=Expected(
            within=ELSE_SECONDS, survives=True, lost="nothing; the other ranks wait"
        ),
        says=rf"algo-1 rank 0\].*rank {VICTIM} on algo-3 \(last operation: .*has not come after",
        test="tests/native/late_test.cc::a_late_rank_is_named_with_its_last_operation",
        frameworks=BOTH,
        stop_after=15.0,
    ),
    _differs("shape", "shape"),
    _differs("dtype", "dtype"),
    _differs("reduction", "op"),
    _differs("root", "root"),
    _differs("kind of collective", "kind"),
    Row(
        name="init_process_group twice",
        script={"fault": "start twice"},
        expected=Expected(within=None, survives=True, lost="nothing; ValueError of torch"),
        test="tests/runtime/dataparallel/test_fault_rows.py::test_a_second_start_is_refused_and_harms_nothing",
    ),
    _goes_on("survivors go on alone, each", "alone", "exit 3"),
    _goes_on("survivors go on together", "others", "exit 3"),
    _goes_on("all go on after an abort", "together", "abort", kinds=("aborted",), silent=(),
             survives=True, lost="the steps since the last state that the script kept"),
)  # fmt: skip
