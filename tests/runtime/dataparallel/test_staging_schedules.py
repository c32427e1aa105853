# SPDX-License-Identifier: Apache-2.0
"""Some of the random schedules that find planted bugs in the order of streams."""

import pytest
import stream_schedules

from benchmarks.planted_stream_bugs.bugs import BUGS
from benchmarks.planted_stream_bugs.planting import ROOT, planted


@pytest.mark.parametrize("waits", [{}, {"wait_blocks_host": True}])
def test_the_right_code_passes_random_schedules(device_processes, waits, tmp_path):
    ranks = device_processes.run_ranks(
        stream_schedules.run_schedules,
        range(5),
        str(tmp_path),
        stream_schedules.BUSY,
        size=2,
        staging=stream_schedules.SLOTS | waits,
        deadline=120,
    )

    assert [{}, {}] == ranks


@pytest.mark.parametrize("file", sorted({bug.file for bug in BUGS}))
def test_each_bug_replaces_one_statement(file):
    text = (ROOT / "container/bindings/torch/staging" / file).read_text()
    numbered = [(number, bug) for number, bug in enumerate(BUGS, 1) if bug.file == file]
    changed = planted(text, numbered)

    for number, _ in numbered:
        assert 1 == changed.count(f"planted_bug() == {number})")
