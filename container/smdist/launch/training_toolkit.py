# SPDX-License-Identifier: Apache-2.0
"""Entry point for images whose `train` is AWS's training toolkit, the package sagemaker-training.

    ENV SAGEMAKER_TRAINING_MODULE=smdist.launch.training_toolkit:main

    train (sagemaker-training) ── smdist.launch ── ranks

The toolkit imports this module and calls `main`. `main` starts the launcher as another process,
because the launcher kills all its own descendants, and helper processes of the toolkit must not be
among them. The toolkit would ignore stop signals, so `main` sends them to the launcher. The toolkit
takes its exit status from an exception's `errno`, and writes a failure file only if there is none
yet.
"""

from __future__ import annotations

import signal
import subprocess
from types import FrameType

from smdist.config import read_base
from smdist.launch.failure_file import write_failure
from smdist.launch.guard_protocol import exit_status, signal_name
from smdist.launch.launch_command import python_command
from smdist.launch.process_control import die_with_parent


class JobEnded(Exception):  # noqa: N818  # also raised when the job was stopped on request
    """Raised when this host's part of the job failed or was stopped.

    Attributes:
        errno: The launcher's exit status, in the attribute that the toolkit reads.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the launcher ended with status {status}; the log above has the reason")
        self.errno = status


def main() -> None:
    """Run the launcher for this host and wait until it has ended.

    Raises:
        JobEnded: The launcher's exit status is not 0.
    """
    stops: list[int] = []
    launcher: list[subprocess.Popen[bytes]] = []

    def stop(number: int, _: FrameType | None) -> None:
        stops.append(number)
        for each in launcher:
            each.send_signal(number)

    stoppers = (signal.SIGTERM, signal.SIGINT)
    for number in stoppers:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stoppers)  # smdist-init blocked them until here
    launcher.append(_start())
    for early in stops[:]:  # signals that arrived before the launcher was started
        launcher[0].send_signal(early)
    status = exit_status(launcher[0].wait())
    if status and stops:
        text = f"the job was stopped by {signal_name(stops[0])}"
        write_failure(read_base(), text)  # otherwise the toolkit would write a traceback
    if status:
        raise JobEnded(status)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        python_command("-m", "smdist.launch"),
        start_new_session=True,  # Ctrl-C reaches the launcher through this process, once
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
