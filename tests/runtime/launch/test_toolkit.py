# SPDX-License-Identifier: Apache-2.0
"""What AWS's toolkit calls: the launcher's status as an exception's errno, and its signals.

tests/docker/test_toolkit.py has the toolkit itself; this stands for its `train`.
"""

import pytest

from sagemaker_dist.contract import DataParallel

TRAIN = """
import sys
from smdist.launch.training_toolkit import main
try:
    main()
except Exception as error:
    print("raised", type(error).__name__, flush=True)
    sys.exit(int(error.errno))
"""


@pytest.fixture
def train(stage):
    """Start what the toolkit's `train` does."""

    def start(script, **choices):
        return stage.run(stage.base(script, **choices), "-c", TRAIN)

    return start


def test_success_raises_nothing(train):
    run = train("print('fine')")

    assert 0 == run.wait()
    assert "[algo-1] fine" in run.said()
    assert "raised" not in run.said()


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("raise SystemExit(7)", 7, "algo-1 exited with code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "algo-1 was killed by SIGKILL: "),
    ],
)
def test_failure_carries_the_scripts_status(train, script, status, reason):
    """The reason is there before the exception is: the toolkit writes none of its own."""
    run = train(script)

    assert status == run.wait()
    assert run.failure().startswith(reason)
    assert "raised JobEnded" in run.said()


def test_what_cannot_start_is_the_reason(train):
    run = train("", options=DataParallel(shard_weights=(1, 2)))

    assert 1 == run.wait()
    assert "shard_weights" == run.fields()["about"]


def test_stop_reaches_the_script(train, until):
    """The signal is sent once, and the failure file names it."""
    script = (
        "import signal, sys, time\n"
        "def save(*_):\n    print('saves')\n    sys.exit(0)\n"
        "signal.signal(15, save)\nprint('ready')\ntime.sleep(60)"
    )
    run = train(script)
    until(lambda: "ready\n" in run.said())
    run.process.terminate()

    assert 143 == run.wait(10)
    assert 1 == run.said().count("saves")
    assert "the job was stopped by SIGTERM" == run.failure()


def test_a_killed_toolkit_takes_the_launcher_along(train, stage, until):
    run = train("import time\nprint('ready')\ntime.sleep(60)")
    until(lambda: "ready\n" in run.said())
    run.process.kill()
    run.wait(5)
    until(lambda: not stage.processes(), 5)
