# SPDX-License-Identifier: Apache-2.0
"""docs/planner.md: its code runs, and its output is what the command prints."""

import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs/planner.md"


@pytest.fixture(scope="module")
def page():
    return runpy.run_path(str(PAGE.with_suffix(".py")))


def test_output_is_that_of_the_command(page, tmp_path):
    """`make docs` was run after the last change of what the planner says."""
    assert page["written"](PAGE.read_text(), tmp_path) == PAGE.read_text()
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert (tmp_path / "plan.json").exists()


def test_code_runs(page, tmp_path, monkeypatch):
    """All blocks of Python, one after the other."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in page["blocks"](PAGE.read_text(), "python"):
        exec(compile(block, str(PAGE), "exec"), names)

    assert (tmp_path / "mine.png").stat().st_size > 10_000
    assert names["plan"].num_microbatches == 16
