# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of faults: each has a test that exists, and a cause that exists."""

import re
from pathlib import Path

import pytest

from benchmarks.faults.fault_row import BOTH, Seen
from benchmarks.faults.page import BEGIN, END, PAGE_NAME
from benchmarks.faults.play import complaints_of
from benchmarks.faults.rows import ROWS
from benchmarks.faults.train import AT_A_STEP, BEFORE_START, THEN

ROOT = Path(__file__).parents[2]
DEFINITIONS = {".py": r"^(async )?def {}\(", ".cc": r"^void {}\("}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_named_test_exists(row):
    path, _, name = row.test.partition("::")
    file = ROOT / path

    assert re.search(DEFINITIONS[file.suffix].format(name), file.read_text(), re.MULTILINE)


def test_names_are_different_and_many():
    """A name is the key of a result."""
    names = [row.name for row in ROWS]

    assert len(names) == len(set(names))
    assert len(names) >= 40


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_has_one_cause(row):
    """A script's fault, an action from outside, or a function that does everything."""
    fault = row.script.get("fault")

    assert 1 == [fault is not None, row.action is not None, row.run is not None].count(True)
    assert fault is None or fault in {*AT_A_STEP, *BEFORE_START}
    assert row.script.get("then", "alone") in THEN
    assert set(row.frameworks) <= set(BOTH)


def test_the_page_has_the_marks():
    text = (ROOT / PAGE_NAME).read_text()

    assert 0 < text.index(BEGIN) < text.index(END)


KILLED = next(row for row in ROWS if row.name == "rank gets SIGKILL")
RIGHT = {
    "seconds": 0.1,
    "errors": [(rank, "lost", 2, "all_reduce", "DistBackendError") for rank in (0, 1, 3)],
    "codes": [1, 1, 137, 1],
    "reasons": [{"rank": 2, "exit_code": 137}],
    "size": 4,
}


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({}, 0),
        ({"seconds": 0.6}, 1),
        ({"seconds": None, "errors": []}, 2),
        ({"errors": RIGHT["errors"][:2]}, 1),
        ({"errors": [(rank, "lost", 1, "", "") for rank in (0, 1, 3)]}, 3),
        ({"errors": [(rank, "timeout", 2, "", "") for rank in (0, 1, 3)]}, 3),
        ({"reasons": [{"rank": 2, "exit_code": 1}]}, 1),
        ({"codes": [0, 0, 0, 0]}, 1),
        ({"left": ["process rank 17"]}, 1),
    ],
)
def test_what_is_wrong_is_seen(change, number):
    """Late, by too few ranks, another culprit or kind, another reason, no failure, left behind."""
    assert number == len(list(complaints_of(KILLED, Seen(**{**RIGHT, **change}))))


RESTARTED = next(row for row in ROWS if row.name == "rank killed, max_restarts=2")
AGAIN = {
    "seconds": 4.0,
    "again_seconds": 12.0,
    "codes": [0, 0, 0, 0],
    "restarts": [{"attempt": 0, "rank": 2, "kind": "signal", "exit_code": 137}],
    "size": 4,
}


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({}, 0),
        ({"errors": RIGHT["errors"][:1]}, 0),  # a launcher may end a rank before it raises
        ({"errors": [(0, "lost", 1, "", "")]}, 1),
        ({"seconds": None}, 1),
        ({"again_seconds": None}, 1),
        ({"again_seconds": 31.0}, 1),
        ({"restarts": []}, 1),
        ({"restarts": [{**AGAIN["restarts"][0], "rank": 1}]}, 1),
        ({"restarts": 2 * AGAIN["restarts"]}, 1),
        ({"codes": [0, 0, 1, 0]}, 1),
    ],
)
def test_what_is_wrong_with_a_restart_is_seen(change, number):
    """Another culprit, not named, late or not again, other reasons, a job that fails."""
    assert number == len(list(complaints_of(RESTARTED, Seen(**{**AGAIN, **change}))))


def test_rows_with_short_limits_or_imports_run_alone():
    shared = {row.name for row in ROWS if not row.is_alone}

    assert KILLED.is_alone
    assert RESTARTED.is_alone
    assert "rank stopped for 20 s" in shared
    assert all(row.expected.within in (None, 30.0, 60.0) for row in ROWS if row.name in shared)
