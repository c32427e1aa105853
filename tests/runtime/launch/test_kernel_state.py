# SPDX-License-Identifier: Apache-2.0
"""A process that is stopped is named by its parent, once a minute, and no other is."""

import json
import os
import signal
import subprocess
import sys

import pytest

from smdist.launch.kernel_state import AGAIN_SECONDS, CHECK_SECONDS, StateWatch, read_kernel_state


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def stopped(sleeper):
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    return sleeper


class Minutes:
    """A watch of a process, and the clock that it reads."""

    def __init__(self, pid, record=None):
        self.now = 100.0
        self.lines = []
        self.watch = StateWatch(pid, self.lines.append, record, lambda: self.now)

    def wait(self, seconds):
        for _ in range(round(seconds / CHECK_SECONDS)):
            self.now += CHECK_SECONDS
            self.watch.check()


def test_a_stopped_process_is_named_after_ten_seconds_and_every_minute(stopped, tmp_path):
    minutes = Minutes(stopped.pid, tmp_path / "debug" / "state.json")

    minutes.wait(10)
    assert [] == minutes.lines
    minutes.wait(2)
    (line,) = minutes.lines
    assert "has been stopped for 10 s (kernel state T)" in line
    assert f"kill -CONT {stopped.pid}" in line
    assert "T" == json.loads((tmp_path / "debug" / "state.json").read_text())["letter"]
    minutes.wait(AGAIN_SECONDS - 2)
    assert 1 == len(minutes.lines)
    minutes.wait(4)
    assert 2 == len(minutes.lines)


def test_a_process_that_goes_on_is_forgotten(stopped, tmp_path, until):
    minutes = Minutes(stopped.pid, tmp_path / "state.json")
    minutes.wait(12)
    stopped.send_signal(signal.SIGCONT)
    until(lambda: read_kernel_state(stopped.pid).letter == "S")
    minutes.wait(120)

    assert 1 == len(minutes.lines)
    assert not (tmp_path / "state.json").exists()


def test_a_process_that_sleeps_is_not_named(sleeper, until):
    until(lambda: read_kernel_state(sleeper.pid).letter == "S")
    minutes = Minutes(sleeper.pid)
    minutes.wait(120)

    assert [] == minutes.lines


def test_a_process_that_has_ended_has_no_state(sleeper):
    sleeper.kill()
    sleeper.wait()

    assert read_kernel_state(sleeper.pid) is None


def test_the_name_of_a_program_may_look_like_a_state(tmp_path):
    """The kernel writes the name in brackets, and does not escape what is in it."""
    program = tmp_path / "a) T 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "600"])
    try:
        assert read_kernel_state(process.pid).letter in "RSD"
    finally:
        process.kill()
        process.wait()
