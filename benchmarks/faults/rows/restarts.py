# SPDX-License-Identifier: Apache-2.0
"""Rows: jobs with `max_restarts` and `elastic_min`, and several faults at once."""

from __future__ import annotations

import signal
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


def _elastic(name: str, action: Action, least: int, expected: Expected, **more: Any) -> Row:
    return Row(
        name=f"{name}, elastic_min={least}",
        action=action,
        options={"elastic_min": least},
        script={"elastic": "yes"},
        expected=expected,
        **{"deadline": 240.0, "is_quick": False, **more},
    )


ROWS = (
    Row(
        name="rank killed, max_restarts=2",
        action=signalled("rank", KILL),
        options={"max_restarts": 2},
        expected=_lost(VICTIM, survives=True, lost=_STEPS),
        test=f"{_RESTARTS}test_all_hosts_restart_after_one_rank_has_failed",
        again=4,
        deadline=240.0,
        frameworks=BOTH,
    ),
    Row(
        name="rank exits with 3 in each attempt, max_restarts=5",
        script={"fault": "exit 3 in each attempt"},
        options={"max_restarts": 5},
        expected=_lost(VICTIM, reason={"not_restarted": "loop"}, lost="the job ends at attempt 2"),
        test=f"{_RESTARTS}test_a_crash_loop_ends_early",
        deadline=240.0,
    ),
    Row(
        name="launcher gets SIGKILL, max_restarts=2, on SageMaker",
        action=signalled("launcher", KILL),
        options={"max_restarts": 2},
        expected=_lost(VICTIM, reason={"not_restarted": "lost"}),
        test=f"{_RESTARTS}test_a_lost_launcher_ends_the_job",
    ),
    Row(
        name="launcher gets SIGKILL, max_restarts=2, in a local job",
        run=host_replaced,
        expected=Expected(within=ELSE_SECONDS, survives=True, lost=_STEPS),
        test="tests/sdk/runners/test_replaced_hosts.py::test_a_host_that_was_killed_starts_again",
        is_quick=False,
    ),
    Row(
        name="another rank killed while all restart, max_restarts=3",
        action=killed_when_restarted(),
        options={"max_restarts": 3},
        expected=_lost(VICTIM, survives=True, lost=_STEPS),
        test="tests/runtime/launch/test_restarts.py::test_another_rank_killed_while_all_restart",
        again=4,
        deadline=240.0,
        is_quick=False,
    ),
    Row(
        name="SIGTERM to all launchers while all restart, max_restarts=3",
        action=terminated_when_restarted(),
        options={"max_restarts": 3},
        expected=_lost(VICTIM, codes=(128 + TERM,), lost=_STEPS),
        test=f"{_RESTARTS}test_a_signal_while_ranks_end_ends_the_job",
        deadline=120.0,
        is_quick=False,
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
        is_quick=False,
    ),
)
