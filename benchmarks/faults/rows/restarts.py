# SPDX-License-Identifier: Apache-2.0
"""Rows: jobs with `max_restarts` and `elastic_min`, and several faults at once."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.faults.actions import (
    VICTIM,
    Action,
    all_of,
    host_killed,
    killed_when_restarted,
    signalled,
    terminated_when_restarted,
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
from benchmarks.faults.local_jobs import host_replaced

KILL, TERM = signal.SIGKILL, signal.SIGTERM
_RESTARTS = "tests/runtime/launch/test_restarts.py::"
_ELASTIC = "tests/runtime/elastic/test_torch.py::"
_STEPS = "steps since the last checkpoint"
_COMMIT = "the lost host, and the steps since the last commit"
_STORM = (1, VICTIM)  # hosts that are killed together
_NAMED = rf"algo-1\] attempt 0 failed: algo-3 rank {VICTIM} .*; restart 1 of \d begins"
_REPLACED = "tests/sdk/runners/test_replaced_hosts.py::"


def _lost(*victims: int, **more: Any) -> Expected:
    return Expected(
        **{
            "within": CRASH_SECONDS,
            "kinds": ("lost", "left"),
            "culprits": victims,
            "silent": victims,
            **more,
        }
    )


def _killed(rank: int) -> Mapping[str, Any]:
    return {"rank": rank, "kind": "signal", "exit_code": 128 + KILL}


def _restarted(*failures: Mapping[str, Any], **more: Any) -> Expected:
    """Return what a restart must do: the failures in restarts.json, and the first one in the log.

    Launchers end the ranks that are left, which may or may not have raised an error before.
    """
    fields = {"survives": True, "lost": _STEPS, **more}
    return _lost(
        VICTIM, **{"within": ELSE_SECONDS, "ends_ranks": True, "restarts": failures, **fields}
    )


def _replaced(name: str, host: str, *, whole: bool) -> Row:
    return Row(
        name=f"{name}, max_restarts=2, in a local job",
        run=partial(host_replaced, host, whole),
        expected=Expected(within=ELSE_SECONDS, survives=True, lost=_STEPS),
        again=2,
        test=f"{_REPLACED}test_a_host_that_was_killed_starts_again",
    )


def _elastic(name: str, action: Action, least: int, expected: Expected, **more: Any) -> Row:
    return Row(
        name=f"{name}, elastic_min={least}",
        action=action,
        options={"elastic_min": least},
        script={"elastic": "yes"},
        expected=expected,
        **{"deadline": 240.0, **more},
    )


ROWS = (
    Row(
        name="rank killed, max_restarts=2",
        action=signalled("rank", KILL),
        options={"max_restarts": 2},
        expected=_restarted(_killed(VICTIM)),
        says=_NAMED,
        test=f"{_RESTARTS}test_all_hosts_restart_after_one_rank_has_failed",
        again=4,
        deadline=240.0,
        frameworks=BOTH,
    ),
    Row(
        name="rank exits with 3 in each attempt, max_restarts=5",
        script={"fault": "exit 3 in each attempt"},
        options={"max_restarts": 5},
        expected=_restarted(
            *({"rank": VICTIM, "kind": "exit", "exit_code": 3, "attempt": each} for each in (0, 1)),
            survives=False,
            reason={"not_restarted": "loop", "rank": VICTIM, "exit_code": 3},
            lost="the job ends after attempt 1",
        ),
        says=_NAMED,
        test=f"{_RESTARTS}test_a_crash_loop_ends_early",
        deadline=240.0,
    ),
    Row(
        name="launcher gets SIGKILL, max_restarts=2, on SageMaker",
        action=signalled("launcher", KILL),
        options={"max_restarts": 2},
        expected=_lost(
            VICTIM,
            within=ELSE_SECONDS,
            by_launchers=True,
            ends_ranks=True,
            reason={"not_restarted": "lost", "kind": "host", "host": "algo-3"},
        ),
        test=f"{_RESTARTS}test_a_lost_launcher_ends_the_job",
    ),
    _replaced("launcher gets SIGKILL", "algo-2", whole=False),
    _replaced("all processes of a host killed", "algo-2", whole=True),
    _replaced("all processes of the first host killed", "algo-1", whole=True),
    Row(
        name="another rank killed while all restart, max_restarts=3",
        action=killed_when_restarted(),
        options={"max_restarts": 3},
        expected=_restarted(_killed(VICTIM), _killed(1)),
        says=_NAMED,
        test=f"{_RESTARTS}test_another_rank_killed_while_all_restart",
        again=4,
        deadline=240.0,
    ),
    Row(
        name="SIGTERM to all launchers while all restart, max_restarts=3",
        action=terminated_when_restarted(),
        options={"max_restarts": 3},
        expected=_restarted(_killed(VICTIM), survives=False, codes=(128 + TERM,)),
        says=_NAMED,
        test=f"{_RESTARTS}test_a_signal_while_ranks_end_ends_the_job",
        deadline=120.0,
    ),
    _elastic(
        "rank killed",
        signalled("rank", KILL),
        2,
        _lost(VICTIM, survives=True, lost=_COMMIT),
        again=3,
        frameworks=BOTH,
        test=f"{_ELASTIC}test_two_hosts_of_three_go_on",
    ),
    _elastic(
        "all processes of a host killed",
        host_killed(network="lives", is_noticed=False),
        2,
        _lost(VICTIM, survives=True, lost=_COMMIT, lost_hosts=(VICTIM,)),
        again=3,
        test="tests/runtime/launch/test_elastic.py::test_a_launcher_that_is_killed_is_a_lost_host",
    ),
    _elastic(
        "host dies, with its kernel",
        host_killed(network="dies"),
        2,
        _lost(VICTIM, within=NETWORK_SECONDS, survives=True, lost=_COMMIT, lost_hosts=(VICTIM,)),
        again=3,
        test="tests/runtime/elastic/test_agents.py::test_a_host_that_hangs_is_left_out_and_learns_it",
    ),
    _elastic(
        "rank killed",
        signalled("rank", KILL),
        4,
        _lost(VICTIM, reason={"kind": "too_few_hosts"}),
        test=f"{_ELASTIC}test_below_elastic_min_every_rank_raises_one_clear_error",
        frameworks=TORCH,
    ),
    _elastic(
        "2 of 4 hosts killed at once",
        all_of(*(host_killed(host, network="lives", is_noticed=False) for host in _STORM)),
        2,
        _lost(*_STORM, survives=True, lost=_COMMIT.replace("host", "hosts"), lost_hosts=_STORM),
        again=2,
        test=f"{_ELASTIC}test_two_losses_in_a_row_leave_one_host",
    ),
    Row(
        name="2 of 4 hosts killed at once",
        action=all_of(*(host_killed(host, network="lives") for host in _STORM)),
        expected=_lost(*_STORM),
        test="tests/native/transport_test.cc::a_killed_process_is_noticed",
        frameworks=BOTH,
    ),
    Row(
        name="2 of 4 hosts die at once, with their kernels",
        action=all_of(*(host_killed(host, network="dies") for host in _STORM)),
        expected=_lost(*_STORM, within=NETWORK_SECONDS),
        test="tests/runtime/dataparallel/test_fault_rows.py::test_row_on_three_hosts",
    ),
)
