# SPDX-License-Identifier: Apache-2.0
"""Rows: hosts and ranks that do not start, start late, or are not allowed to."""

from __future__ import annotations

import time

from benchmarks.faults import actions
from benchmarks.faults.actions import VICTIM, nothing
from benchmarks.faults.fault_row import BOTH, ELSE_SECONDS, Expected, Row
from benchmarks.faults.hosts_job import HostsJob
from benchmarks.faults.torchrun_row import torchrun_restarts

_FULL_SHARED_MEMORY = (
    "sh",
    "-c",
    'mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full; exec "$@"',
    "sh",
)
_STARTS = "tests/native/starts_test.cc::"


def _without_the_victim(job: HostsJob) -> None:
    job.start([number for number in range(job.size) if number != VICTIM])
    job.note_fault()


def _victim_late(job: HostsJob) -> None:
    _without_the_victim(job)
    time.sleep(15)
    job.start([VICTIM])


def _victim_very_late(job: HostsJob) -> None:
    _without_the_victim(job)
    time.sleep(40)
    job.start([VICTIM])


def _victim_with_another_secret(job: HostsJob) -> None:
    job.start([n for n in range(job.size) if n != VICTIM], SMDIST_SECRET="a" * 64)
    job.start([VICTIM], SMDIST_SECRET="b" * 64)
    job.note_fault()


def _two_hosts_apart(job: HostsJob) -> None:
    actions.partitioned(None, "both")(job)
    job.start()


ROWS = (
    Row(
        name="host 40 s late",
        begin=_victim_very_late,
        action=nothing,
        expected=Expected(within=ELSE_SECONDS, survives=True, lost="nothing"),
        says=r"algo-1\] .*these have not joined yet: algo-3",
        deadline=240.0,
        test="tests/runtime/launch/test_host_arrivals.py::"
        "test_two_that_do_not_come_are_named_on_the_others",
        is_quick=False,
    ),
    Row(
        name="host that never starts, start timeout of 12 s",
        begin=_without_the_victim,
        until="",
        action=nothing,
        options={"start_timeout_seconds": 12},
        expected=Expected(
            within=ELSE_SECONDS,
            by_launchers=True,
            reason={"kind": "timeout", "culprit": VICTIM},
            lost="the start",
        ),
        deadline=150,
        test="tests/runtime/launch/test_host_arrivals.py::"
        "test_two_that_do_not_come_are_named_on_the_others",
        is_quick=False,
        frameworks=BOTH,
    ),
    Row(
        name="rank that never starts, start timeout of 20 s",
        script={"fault": "never starts"},
        until="",
        options={"start_timeout_seconds": 20},
        expected=Expected(
            within=ELSE_SECONDS,
            kinds=("timeout", "lost"),
            culprits=(VICTIM,),
            silent=(VICTIM,),
            lost="the start",
        ),
        test="tests/runtime/tensorflow/test_world.py::test_a_rank_that_never_joins_is_named",
        is_quick=False,
        frameworks=BOTH,
    ),
    Row(
        name="rank raises before it connects",
        script={"fault": "raise before"},
        until="",
        expected=Expected(
            within=ELSE_SECONDS,
            by_launchers=True,
            reason={"rank": VICTIM, "kind": "raised"},
            lost="the start",
        ),
        test="tests/runtime/tensorflow/test_world.py::"
        "test_a_rank_that_raises_is_named_with_its_reason",
    ),
    Row(
        name="host 15 s late",
        begin=_victim_late,
        action=nothing,
        expected=Expected(within=None, survives=True, lost="nothing"),
        test=f"{_STARTS}a_dial_is_repeated_until_its_time_limit",
    ),
    Row(
        name="host with another secret, start timeout of 20 s",
        begin=_victim_with_another_secret,
        until="",
        action=nothing,
        options={"start_timeout_seconds": 20},
        expected=Expected(within=60.0, by_launchers=True, lost="the start"),
        test="tests/runtime/dataparallel/test_secret.py::"
        "test_ranks_with_different_secrets_do_not_talk",
        is_quick=False,
        frameworks=BOTH,
    ),
    Row(
        name="host unreachable at the start, start timeout of 12 s",
        begin=_two_hosts_apart,
        until="",
        action=nothing,
        options={"start_timeout_seconds": 12},
        expected=Expected(
            within=ELSE_SECONDS, by_launchers=True, reason={"kind": "timeout"}, lost="the start"
        ),
        deadline=150,
        test=f"{_STARTS}a_start_ends_at_its_time_limit",
        is_quick=False,
    ),
    Row(
        name="too few open files for the connections (16)",
        wrap=("prlimit", "--nofile=16:16"),
        wrap_host=VICTIM,
        until="",
        action=nothing,
        options={"start_timeout_seconds": 20},
        expected=Expected(within=60.0, by_launchers=True, lost="the start"),
        test=f"{_STARTS}too_few_files_for_one_lane_are_an_error_before_the_first_connection",
        is_quick=False,
    ),
    Row(
        name="/dev/shm full on every host",
        wrap=_FULL_SHARED_MEMORY,
        action=nothing,
        expected=Expected(within=None, survives=True, lost="nothing"),
        test="tests/runtime/dataparallel/test_fault_rows.py::test_row_on_three_hosts",
    ),
    Row(
        name="torchrun --max-restarts 2, rank killed",
        run=torchrun_restarts,
        expected=Expected(
            within=ELSE_SECONDS, survives=True, lost="steps since the last checkpoint"
        ),
        test="tests/runtime/dataparallel/test_fault_rows.py::test_torchrun_restarts_ranks",
    ),
)
