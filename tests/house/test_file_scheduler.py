# SPDX-License-Identifier: Apache-2.0
"""Facts about the scheduler of `make test`."""

import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
CONFTEST = """
import sys
sys.path.insert(0, {support!r})
def pytest_xdist_make_scheduler(config, log):
    from file_scheduler import FileScheduler
    return FileScheduler(config, log)
"""
PASSES = "def test_a(): pass\ndef test_b(): pass\n"
ENDS = "import os, time\n" + PASSES + "def test_c(): time.sleep(0.5); os._exit(3)\n"


def run(folder, files):
    """Run files of tests in two processes, and return the lines that pytest has printed."""
    (folder / "conftest.py").write_text(CONFTEST.format(support=str(SUPPORT)))
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = "-m pytest -p no:cacheprovider -n 2 --dist loadscope --no-loadscope-reorder"
    found = subprocess.run(
        [sys.executable, *command.split(), str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return found.stdout.splitlines()


def test_all_other_tests_run_after_one_has_ended_its_process(tmp_path):
    """The ended process had finished files, and the other process has nothing left to do."""
    files = {"1": PASSES, "2": PASSES, "3": PASSES, "4": ENDS + "def test_d(): pass\n"}
    lines = run(tmp_path, files)
    assert "1 failed, 9 passed" in lines[-1], lines
    assert any("crashed while running" in line and "test_4.py::test_c" in line for line in lines)


def test_the_last_test_may_end_its_process(tmp_path):
    lines = run(tmp_path, {"1": PASSES, "2": ENDS})
    assert "1 failed, 4 passed" in lines[-1], lines
