# SPDX-License-Identifier: Apache-2.0
"""Plugin of pytest that writes each test's result at once, to the file SMDIST_TEST_RESULTS.

pytest -p gpu_run.record_results ...
"""

import json
import os
from pathlib import Path

import pytest

_OUTCOMES = {"passed": "pass", "skipped": "skip", "failed": "fail"}
_FILE = Path(os.environ["SMDIST_TEST_RESULTS"])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a line when a test has ended, or when its set-up or its end has failed."""
    if report.when == "call" or report.outcome != "passed":
        said = report.longrepr
        reason = said[2] if isinstance(said, tuple) else str(said or "")
        line = {
            "name": report.nodeid,
            "outcome": _OUTCOMES[report.outcome],
            "seconds": round(report.duration, 2),
            "said": reason.removeprefix("Skipped: "),
        }
        with _FILE.open("a") as file:
            file.write(f"{json.dumps(line)}\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write a line for a file that cannot be imported."""
    if report.failed:
        with _FILE.open("a") as file:
            line = {"name": report.nodeid, "outcome": "fail", "seconds": 0.0}
            file.write(f"{json.dumps(line | {'said': str(report.longrepr)})}\n")
