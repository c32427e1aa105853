# SPDX-License-Identifier: Apache-2.0
"""Rows: ranks, guards, starters, launchers and hosts that are killed, stopped or ended."""

from __future__ import annotations

import signal

from benchmarks.faults.actions import (
    VICTIM,
    host_killed,
    host_removed,
    interrupted,
    out_of_memory,
    signalled,
    stopped,
    terminated,
)
from benchmarks.faults.fault_row import (
    BOTH,
    CRASH_SECONDS,
    ELSE_SECONDS,
    NETWORK_SECONDS,
    TORCH,
    Expected,
    Row,
)

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
_BIG = 20_000_000  # 80 MB: more than the kernel takes while a rank is stopped
_SUPERVISE = "tests/runtime/launch/test_supervise.py::"
_SHORT = "tests/runtime/dataparallel/test_fault_rows.py::"
_ERRORS = "tests/runtime/dataparallel/test_errors.py::"


def _crash(**more: object) -> Expected:
    return Expected(
        within=CRASH_SECONDS, kinds=("lost", "left"), culprits=(VICTIM,), silent=(VICTIM,), **more
    )  # type: ignore[arg-type]


def _killed(kind: str, number: signal.Signals, test: str, *, both: bool = False) -> Row:
    reason = {"rank": VICTIM, "exit_code": 128 + number} if kind == "rank" else {}
    return Row(
        name=f"{kind} gets {number.name}",
        action=signalled(kind, number),
        expected=_crash(reason=reason),
        test=test,
        frameworks=BOTH if both else TORCH,
    )


def _lives_on(kind: str, seconds: float, test: str, says: str = "") -> Row:
    within = ELSE_SECONDS if says else None
    return Row(
        name=f"{kind} stopped for {seconds:g} s",
        action=stopped(kind, seconds),
        expected=Expected(within=within, survives=True, lost="nothing; the other ranks wait"),
        test=test,
        deadline=120,
        says=says,
    )


ROWS = (
    _killed("rank", KILL, f"{_ERRORS}test_a_killed_rank_is_named_on_every_other", both=True),
    _killed("rank", TERM, f"{_SHORT}test_a_rank_that_ends_is_named"),
    _killed("guard", KILL, f"{_SUPERVISE}test_killed_guard_takes_its_rank_along", both=True),
    _killed("guard", TERM, "tests/runtime/launch/test_rank.py::"
            "test_signal_reaches_the_rank_once_and_its_workers_never"),
    _killed("starter", KILL, f"{_SUPERVISE}test_killed_starter_ends_the_host", both=True),
    _killed("launcher", KILL, "tests/runtime/launch/test_launch.py::"
            "test_guards_of_a_killed_launcher_remove_its_folder", both=True),
    _killed("launcher", TERM, f"{_SUPERVISE}test_signal_reaches_every_rank_at_once"),
    Row(
        name="all processes of a host killed",
        action=host_killed(network="lives"),
        expected=_crash(),
        test="tests/native/transport_test.cc::a_killed_process_is_noticed",
        frameworks=BOTH,
    ),
    Row(
        name="host dies, with its kernel",
        action=host_killed(network="dies"),
        expected=Expected(
            within=NETWORK_SECONDS, kinds=("lost",), culprits=(VICTIM,), silent=(VICTIM,)
        ),
        test=f"{_SHORT}test_row_on_three_hosts",
        frameworks=BOTH,
    ),
    Row(
        name="host removed, processes first, then its network",
        action=host_removed(),
        environ={"SMDIST_SECRET": "a secret of this job alone", "SMDIST_SILENCE_SECONDS": "60"},
        expected=_crash(),
        test="tests/runtime/launch/test_removed_host.py::test_a_removed_host_is_named_at_once",
    ),
    Row(
        name="rank out of memory (OOM kill)",
        action=out_of_memory(),
        expected=Expected(
            within=ELSE_SECONDS,  # from the moment at which no memory is left
            kinds=("lost",),
            culprits=(VICTIM,),
            silent=(VICTIM,),
            reason={"rank": VICTIM, "exit_code": 137},
        ),
        test="tests/runtime/launch/test_failure.py::test_out_of_memory_is_suggested",
    ),
    Row(
        name="rank stopped for good, sums of 1 MB, timeout of 15 s",
        action=stopped("rank", None),
        options={"timeout_seconds": 15},
        expected=Expected(
            within=ELSE_SECONDS, kinds=("lost", "timeout"), culprits=(VICTIM,), silent=(VICTIM,)
        ),
        test=f"{_ERRORS}test_a_missing_rank_is_named_after_the_timeout",
        frameworks=BOTH,
    ),
    Row(
        name="rank stopped for good, sums of 80 MB, timeout of 15 s",
        action=stopped("rank", None),
        script={"count": _BIG},
        options={"timeout_seconds": 15},
        expected=Expected(
            within=ELSE_SECONDS, kinds=("lost", "timeout"), culprits=(VICTIM,), silent=(VICTIM,)
        ),
        test=f"{_SHORT}test_row_on_three_hosts",
    ),
    _lives_on("rank", 5, f"{_SHORT}test_a_stopped_process_goes_on"),
    _lives_on("rank", 20, "tests/runtime/launch/test_rank.py::"
              "test_a_stopped_rank_is_named_in_its_output",
              rf"algo-3 rank {VICTIM}\] smdist: this process has been stopped for \d+ s"),
    _lives_on("guard", 15, f"{_SUPERVISE}"
              "test_a_stopped_guard_and_a_stopped_starter_are_named_by_the_launcher",
              rf"algo-3\] smdist: the guard of rank {VICTIM} has been stopped for \d+ s"),
    _lives_on("starter", 15, f"{_SUPERVISE}"
              "test_a_stopped_guard_and_a_stopped_starter_are_named_by_the_launcher",
              r"algo-3\] smdist: torchrun, which starts the ranks, has been stopped for \d+ s"),
    _lives_on("launcher", 15, f"{_SUPERVISE}"
              "test_a_stopped_launcher_is_named_by_the_guard_of_its_first_rank",
              r"algo-3 rank 2\] smdist: the launcher of this host has been stopped for \d+ s"),
    Row(
        name="job stopped (SIGTERM to all launchers)",
        action=terminated(),
        expected=Expected(
            within=None, kinds=("lost", "left"), codes=(128 + TERM,),
            lost="nothing that the script saves in its 120 s",
        ),
        test="tests/runtime/launch/test_torchrun.py::test_killed_rank_and_stopped_host",
        frameworks=BOTH,
    ),
    Row(
        name="job stopped while ranks start",
        action=terminated(),
        until="started",
        expected=Expected(
            within=None, kinds=("lost", "left"), codes=(128 + TERM,), lost="nothing"
        ),
        test="tests/runtime/launch/test_launch.py::test_stop_while_waiting_for_hosts",
    ),
    Row(
        name="Ctrl-C, once",
        action=interrupted(1),
        expected=Expected(
            within=None, kinds=("lost", "left", "aborted", "raised"), codes=(128 + INT,),
            lost="steps since the last checkpoint",
        ),
        test=f"{_SUPERVISE}test_signal_reaches_every_rank_at_once",
        frameworks=BOTH,
    ),
    Row(
        name="Ctrl-C, twice",
        action=interrupted(2),
        expected=Expected(
            within=None, kinds=("lost", "left", "aborted", "raised"), codes=(128 + INT,),
            lost="steps since the last checkpoint",
        ),
        test=f"{_SUPERVISE}test_signal_reaches_every_rank_at_once",
    ),
)  # fmt: skip
