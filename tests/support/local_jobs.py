# SPDX-License-Identifier: Apache-2.0
"""Jobs of a local runner in tests: start, wait, and read what they printed."""

import time
from pathlib import Path

from sagemaker_dist.runners import TERMINAL


def run(runner, request, **how):
    """Start a job and return its last description."""
    return finish(runner, runner.start(request, **how))


def finish(runner, name, seconds=60):
    """Wait for the end of a job and return its last description."""
    wait_until(lambda: runner.describe(name)["TrainingJobStatus"] in TERMINAL, seconds)
    return runner.describe(name)


def wait_until(condition, seconds=60):
    """Poll until the condition holds: on a busy machine an interpreter takes 10 s to start."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.02)


def log(runner, name="job"):
    """Return what a job has printed so far; empty before its supervisor has made the file."""
    file = Path(runner.logs_at(name), "all.log")
    return file.read_text() if file.exists() else ""
