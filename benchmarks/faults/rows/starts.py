# SPDX-License-Identifier: Apache-2.0
"""Rows: hosts and ranks that do not start, start late, or are not allowed to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.faults import actions
from benchmarks.faults.actions import VICTIM, nothing
from benchmarks.faults.fault_row import BOTH, ELSE_SECONDS, Expected, Row
from benchmarks.faults.hosts_job import HostsJob
from benchmarks.faults.torchrun_row import torchrun_restarts

_STARTS = "tests/native/starts_test.cc::"
_ARRIVALS = "tests/runtime/launch/test_host_arrivals.py::"
_WORLD = "tests/runtime/tensorflow/test_world.py::"
_SHORT = "tests/runtime/dataparallel/test_fault_rows.py::"
_FULL_SHARED_MEMORY = (
    "sh",
    "-c",
    'mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero > /dev/shm/full; exec "$@"',
    "sh",
)


def _without_the_victim(job: HostsJob) -> None:
    job.start([number for number in range(job.size) if number != VICTIM])
    job.note_fault()


def _victim_late(seconds: float) -> Callable[[HostsJob], None]:
    def begin(job: HostsJob) -> None:
        _without_the_victim(job)
        time.sleep(seconds)
        job.start([VICTIM])

    return begin


def _victim_with_another_secret(job: HostsJob) -> None:
    job.start([n for n in range(job.size) if n != VICTIM], SMDIST_SECRET="a" * 64)
    job.start([VICTIM], SMDIST_SECRET="b" * 64)
    job.note_fault()


def _two_hosts_apart(job: HostsJob) -> None:
    actions.partitioned(None, "both")(job)
    job.start()


def _fails(name: str, start_timeout: float | None, test: str, expected: Any, **more: Any) -> Row:
    """Return the row of a job that does not start; launchers report it, if `expected` is {}."""
    limit = "" if start_timeout is None else f", start timeout of {start_timeout:g} s"
    options = {} if start_timeout is None else {"start_timeout_seconds": start_timeout}
    fields = {"within": ELSE_SECONDS, "by_launchers": True, "lost": "the start", **expected}
    cause = {} if "script" in more else {"action": nothing}
    return Row(
        name=f"{name}{limit}",
        until="",
        options=options,
        expected=Expected(**fields),
        test=test,
        **{"deadline": 150.0, **cause, **more},
    )


def _starts(name: str, test: str, **more: Any) -> Row:
    """Return the row of a job that starts all the same."""
    expected = Expected(within=None, survives=True, lost="nothing")
    return Row(name=name, test=test, **{"action": nothing, "expected": expected, **more})


ROWS = (
    _starts("host 15 s late", f"{_STARTS}a_dial_is_repeated_until_its_time_limit",
            begin=_victim_late(15)),
    _starts("host 40 s late", f"{_ARRIVALS}test_two_that_do_not_come_are_named_on_the_others",
            begin=_victim_late(40), says=r"algo-1\] .*it waits for algo-3, not joined yet",
            expected=Expected(within=ELSE_SECONDS, survives=True, lost="nothing")),
    _fails("host that never starts", 12,
           f"{_ARRIVALS}test_two_that_do_not_come_are_named_on_the_others",
           {"reason": {"kind": "timeout", "culprit": VICTIM}},
           begin=_without_the_victim, frameworks=BOTH),
    _fails("rank that never starts", 20, f"{_WORLD}test_a_rank_that_never_joins_is_named",
           {"by_launchers": False, "kinds": ("timeout", "lost"), "culprits": (VICTIM,),
            "silent": (VICTIM,)},
           script={"fault": "never starts"}, frameworks=BOTH),
    _fails("rank raises before it connects", None,
           f"{_WORLD}test_a_rank_that_raises_is_named_with_its_reason",
           {"reason": {"rank": VICTIM, "kind": "raised"}}, script={"fault": "raise before"}),
    _fails("host with another secret", 20,
           "tests/runtime/dataparallel/test_secret.py::"
           "test_ranks_with_different_secrets_do_not_talk",
           {"within": 60.0}, begin=_victim_with_another_secret, frameworks=BOTH),
    _fails("host unreachable at the start", 12, f"{_STARTS}a_start_ends_at_its_time_limit",
           {"reason": {"kind": "timeout"}}, begin=_two_hosts_apart),
    _fails("too few open files for the connections (16)", 20,
           f"{_STARTS}too_few_files_for_one_lane_are_an_error_before_the_first_connection",
           {"within": 60.0}, wrap=("prlimit", "--nofile=16:16"), wrap_host=VICTIM),
    _starts("/dev/shm full on every host", f"{_SHORT}test_row_on_three_hosts",
            wrap=_FULL_SHARED_MEMORY),
    Row(
        name="torchrun --max-restarts 2, rank killed",
        run=torchrun_restarts,
        expected=Expected(
            within=ELSE_SECONDS, survives=True, lost="steps since the last checkpoint"
        ),
        test=f"{_SHORT}test_torchrun_restarts_ranks",
    ),
)  # fmt: skip
