# SPDX-License-Identifier: Apache-2.0
"""Processes and files of whole jobs, for tests."""

import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "notebooks/digits"


def processes_of(job_name):
    """Return every process of a job: launchers of hosts, torchrun, guards, ranks and children."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TRAINING_JOB_NAME") == job_name:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def ranks_of(job_name, script):
    """Return the ranks' own processes, by rank."""
    found = {}
    for process in processes_of(job_name):
        try:
            command, environment = process.cmdline(), process.environ()
        except psutil.Error:
            continue
        is_rank = any(part.endswith(script) for part in command[:3]) and "-m" not in command[:3]
        if is_rank and "RANK" in environment:
            found[int(environment["RANK"])] = process
    return found


def wait_until(condition, seconds=120):
    """Poll until the condition holds, and return its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := condition():
            return answer
        time.sleep(0.1)
    pytest.fail(f"not so after {seconds} s: {condition.__doc__ or condition.__name__}")
