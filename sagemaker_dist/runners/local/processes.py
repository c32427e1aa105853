# SPDX-License-Identifier: Apache-2.0
"""Hosts that are processes of this machine: one launcher each, at a loopback address."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.runners.local.data.channels import Data
from sagemaker_dist.runners.local.family import die_with_parent, kill_descendants
from sagemaker_dist.runners.local.folder import JobFolder
from sagemaker_dist.runners.local.output import Output
from sagemaker_dist.runners.local.tree import HostTree, host_environment

LAUNCHER: Final = "smdist.launch"
_PORTS_PER_HOST: Final = 3  # a chief or none, a worker and a ps: strategies of TensorFlow
_TRIES: Final = 20


@dataclass(slots=True)
class ProcessHost:
    """One host's launcher, running."""

    place: LocalHost
    tree: HostTree
    output: Output
    process: subprocess.Popen[bytes]
    asked: bool = False

    def fileno(self) -> int:
        """The read end of its output."""
        return self.output.source

    def poll(self) -> int | None:
        """The exit code of the launcher, negative for a signal."""
        return self.process.poll()

    def terminate(self) -> None:
        """SIGTERM to the launcher."""
        self.asked = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Write down what it said last."""
        self.output.drain()
        if self.process.stdout:
            self.process.stdout.close()

    def ending(self, code: int) -> str:
        """By which signal or with which code."""
        launcher = f"The launcher of {self.place.label}"
        if code >= 0:
            return f"{launcher} exited with code {code}, giving no reason."
        name = signal.Signals(-code).name
        hint = " It may have run out of memory." if name == "SIGKILL" else ""
        return f"{launcher} was killed by {name}.{hint}"


@dataclass(frozen=True, slots=True)
class ProcessFleet:
    """The launchers of one job; whatever they start is a descendant of this process."""

    folder: JobFolder
    job: LocalJob
    data: Data

    def start(self) -> list[ProcessHost]:
        """Start one launcher per host."""
        port = _free_port(_PORTS_PER_HOST * len(self.job.hosts))
        return [self._start(host, port) for host in self.job.hosts]

    def _start(self, host: LocalHost, master_port: int) -> ProcessHost:
        tree = HostTree(self.folder.hosts / host.label)
        tree.create(self.job, host, self.folder)
        tree.link_checkpoints(self.job, self.folder.checkpoints(self.job))
        self.data.place(host, tree)
        process = subprocess.Popen(
            [sys.executable, "-m", LAUNCHER],
            cwd=tree.root,
            env=host_environment(self.job, host, tree, master_port, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert process.stdout is not None, "it was started with a pipe"
        output = Output.of(process.stdout.fileno(), host.label, self.folder)
        return ProcessHost(host, tree, output, process)

    def kill(self) -> None:
        """Kill every descendant; exit codes are lost."""
        kill_descendants()

    def remove(self) -> None:
        """Processes leave nothing else."""
        kill_descendants()


def _free_port(following: int) -> int:
    """A port that nobody has, nor so many after it if that can be found."""
    port = 0
    for _ in range(_TRIES):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if all(_is_free(port + number) for number in range(1, following + 1)):
            break
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
