# SPDX-License-Identifier: Apache-2.0
"""Rows: checkpoints on disks and in folders that something happened to, and local jobs."""

from __future__ import annotations

from functools import partial

from benchmarks.faults.checkpoint_cases import CASES, in_a_process
from benchmarks.faults.fault_row import AT_ONCE_SECONDS, ELSE_SECONDS, Expected, Row
from benchmarks.faults.local_jobs import supervisor_signalled

_FOLDER = "tests/runtime/modelparallel/torch/checkpoint/"
_TESTS = {
    "disk full while a checkpoint is saved": "test_files.py::test_full_disk_leaves_the_older_one",
    "killed while a checkpoint is saved": "test_files.py::"
    "test_kill_before_a_rename_leaves_a_whole_one",
    "newest checkpoint half synced": "test_subsets.py::test_every_subset_of_the_files",
    "newest checkpoint cut short": "test_subsets.py::test_every_file_cut_short_or_changed",
    "one bit of a checkpoint flipped": "test_subsets.py::test_every_bit_that_is_changed_is_named",
    "wall clock goes back between checkpoints": "test_writers.py::test_clock_that_goes_back",
    "two writers of one checkpoint": "test_writers.py::test_two_writers_without_locks",
    "no checkpoint is there": "test_writers.py::test_none_and_all_damaged_are_different_answers",
}
_ENDINGS = "tests/sdk/runners/test_endings.py::"

ROWS = (
    *(
        Row(
            name=name,
            run=partial(in_a_process, name),
            expected=Expected(within=ELSE_SECONDS, survives=True, lost=CASES[name].lost),
            test=_FOLDER + test,
        )
        for name, test in _TESTS.items()
    ),
    Row(
        name="supervisor of a local job gets SIGKILL",
        run=partial(supervisor_signalled, "SIGKILL", "Failed"),
        expected=Expected(within=AT_ONCE_SECONDS + 0.5, lost="the job ends"),
        test=f"{_ENDINGS}test_killed_supervisor_is_noticed",
    ),
    Row(
        name="supervisor of a local job gets SIGTERM",
        run=partial(supervisor_signalled, "SIGTERM", "Stopped"),
        expected=Expected(within=ELSE_SECONDS, lost="the job ends as stopped"),
        test=f"{_ENDINGS}test_killed_driver_takes_its_job_along",
    ),
    Row(
        name="supervisor of a local job stopped for 15 s",
        run=partial(supervisor_signalled, "SIGSTOP", "Completed"),
        expected=Expected(within=ELSE_SECONDS, lost="nothing"),
        says="the supervisor of this job has been stopped",
        test="tests/sdk/runners/test_supervisor_watch.py::"
        "test_a_stopped_supervisor_is_named_and_the_watch_ends_with_it",
    ),
    Row(
        name="disk of a local job full: logs and state",
        run=partial(supervisor_signalled, "full disk", "Completed"),
        expected=Expected(within=None, lost="lines of the log; no step"),
        test="tests/sdk/runners/test_last_state.py::test_a_job_on_a_full_disk_completes",
    ),
)
