# SPDX-License-Identifier: Apache-2.0
"""The launcher below AWS's training toolkit, which many images have as their `train`.

    ENV SAGEMAKER_TRAINING_MODULE=smdist.launch.toolkit:main

    train (sagemaker-training) ── smdist.launch ── ranks

A process of its own: the toolkit has helpers, and the launcher ends all below it. The
toolkit knows no signals; here they reach the launcher. It takes its exit status from an
exception's `errno`, and writes its own reason only where there is none.
"""

from __future__ import annotations

import signal
import subprocess
from types import FrameType

from smdist.config import read_base
from smdist.launch.command import python_command
from smdist.launch.failure import write_failure
from smdist.launch.processes import die_with_parent
from smdist.launch.report import exit_status, signal_name


class JobEnded(Exception):  # noqa: N818  # the reason is the launcher's, told before
    """This host's part of the job failed or was stopped.

    Attributes:
        errno: The exit status, where the toolkit looks for it.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"the launcher ended with status {status}; its own words are above")
        self.errno = status


def main() -> None:
    """Run this host's part of the job.

    Raises:
        JobEnded: Its status is not 0.
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stoppers)  # our init blocks them until here
    launcher.append(_start())
    for early in stops[:]:  # came before there was anybody to tell
        launcher[0].send_signal(early)
    status = exit_status(launcher[0].wait())
    if status and stops:
        text = f"the job was stopped by {signal_name(stops[0])}"
        write_failure(read_base(), text)  # or the toolkit would write a traceback
    if status:
        raise JobEnded(status)


def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        python_command("-m", "smdist.launch"),
        start_new_session=True,  # a terminal's Ctrl-C comes through us, once
        preexec_fn=die_with_parent(signal.SIGTERM),
    )
