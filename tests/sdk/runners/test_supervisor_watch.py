# SPDX-License-Identifier: Apache-2.0
"""A supervisor that is stopped is named in the job's log, by a process that runs."""

import os
import signal
import subprocess
import sys

import psutil
import pytest
from local_jobs import wait_until

from sagemaker_dist.runners.local import supervisor_watch
from sagemaker_dist.runners.local.supervisor_watch import StopReport, start_watch


@pytest.fixture
def supervisor():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_a_stopped_supervisor_is_named_and_the_watch_ends_with_it(
    supervisor, tmp_path, monkeypatch
):
    for limit in ("CHECK_SECONDS", "FIRST_SECONDS"):
        monkeypatch.setattr(supervisor_watch, limit, 0.1)
    log = tmp_path / "all.log"
    log.touch()
    alive, held = os.pipe()
    before = psutil.Process().children()
    start_watch(supervisor.pid, alive, log)
    (watch,) = set(psutil.Process().children()) - set(before)
    os.close(alive)
    try:
        assert "" == log.read_text()
        supervisor.send_signal(signal.SIGSTOP)
        wait_until(lambda: log.read_text().endswith("\n"))
    finally:
        os.close(held)
    watch.wait(30)
    line = log.read_text().splitlines()[0]

    assert line.startswith("[sagemaker-dist] the supervisor of this job has been stopped for 0 s")
    assert f"(kernel state T): SIGCONT (kill -CONT {supervisor.pid}) lets it go on" in line


def test_a_line_after_ten_seconds_and_every_minute_until_it_goes_on():
    lines, letters = [], {}
    report = StopReport(lambda: letters.get("now", ""), lines.append, "hint")

    def wait(first, last):
        for now in range(first, last, 2):
            report.check(float(now))
        return len(lines)

    assert 0 == wait(0, 100)
    letters["now"] = "T"
    assert 0 == wait(100, 110)
    assert 1 == wait(110, 170)
    assert 2 == wait(170, 172)
    letters["now"] = ""
    assert 2 == wait(172, 400)
    letters["now"] = "t"
    assert 3 == wait(400, 412)
    assert "the supervisor of this job has been stopped for 10 s (kernel state t): hint" == lines[2]
