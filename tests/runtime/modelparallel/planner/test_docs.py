# SPDX-License-Identifier: Apache-2.0
"""docs/planner.md: its code runs, and its output is what the command prints."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4] / "docs/planner.md"


@pytest.fixture(scope="module")
def page():
    return runpy.run_path(str(PAGE.with_suffix(".py")))


@pytest.mark.slow
def test_output_is_that_of_the_command(page, tmp_path):
    """`make docs` was run after the last change of what the planner says."""
    assert page["written"](PAGE.read_text(), tmp_path) == PAGE.read_text()
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert (tmp_path / "plan.json").exists()


@pytest.mark.slow
def test_code_runs(page, tmp_path, monkeypatch):
    """All blocks of Python, one after the other."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "model", None)  # put back afterwards, whatever it was
    del sys.modules["model"]
    blocks, names = page["blocks"](PAGE.read_text(), "python"), {}
    (tmp_path / "model.py").write_text(blocks[0])
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)

    assert (tmp_path / "mine.png").stat().st_size > 10_000
    assert names["plan"].num_microbatches == 16
    assert names["by_hand"].stages[0] == ("embed", "blocks.0", "blocks.1")


@pytest.mark.slow
def test_the_small_model_is_measured(page, tmp_path):
    """The page's own command ends on a machine without a GPU."""
    text = PAGE.read_text()
    for name, block in zip(("model.py", "small.py"), page["blocks"](text, "python"), strict=False):
        (tmp_path / name).write_text(block)
    command = page["blocks"](text, "sh")[1].split()[1:]
    program = [sys.executable, "-m", "sagemaker_dist.cli", *command, "--json"]
    done = subprocess.run(
        program, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )

    assert 0 == done.returncode, done.stderr
    assert "measured" == json.loads(done.stdout)["forecast"]["source"]
