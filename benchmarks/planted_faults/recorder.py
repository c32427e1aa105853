# SPDX-License-Identifier: Apache-2.0
"""Plugin of pytest that records the failed tests, and the last started one in case pytest dies."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

NAME = "planted_fault_recorder"
RECORD = "PLANTED_FAULT_RECORD"

_state: dict[str, Any] = {"started": "", "failed": [], "num_run": 0, "is_over": False}
_record: list[Path] = []


def pytest_configure():
    if RECORD in os.environ:  # removed, so that a pytest started by a test does not write
        _record.append(Path(os.environ.pop(RECORD)))
        os.environ.pop("PYTEST_ADDOPTS", None)
        _write()


def pytest_runtest_logstart(nodeid):
    _state["started"] = nodeid
    _state["num_run"] += 1
    _write()


def pytest_runtest_logreport(report):
    if report.failed:
        _state["failed"].append(report.nodeid)
        _write()


def pytest_collectreport(report):
    if report.failed:
        _state["failed"].append(report.nodeid)
        _write()


def pytest_sessionfinish():
    _state["is_over"] = True
    _write()


def _write() -> None:
    if _record:
        _record[0].write_text(json.dumps(_state))
