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
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.opt_ml_tree import HostTree, host_environment
from sagemaker_dist.runners.local.output import Output
from sagemaker_dist.runners.local.process_tree import die_with_parent, kill_descendants

LAUNCHER: Final = "smdist.launch"
_PORTS_PER_HOST: Final = 3  # for TensorFlow: a chief or none, a worker and a ps
_TRIES: Final = 20


@dataclass(slots=True)
class ProcessHost:
    """The running launcher of one host."""

    place: LocalHost
    tree: HostTree
    output: Output
    process: subprocess.Popen[bytes]
    was_stopped: bool = False

    def fileno(self) -> int:
        """Return the read end of its output."""
        return self.output.source

    def poll(self) -> int | None:
        """Return the exit code of the launcher, negative for a signal; None while it runs."""
        return self.process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to the launcher."""
        self.was_stopped = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Write the rest of its output to the logs."""
        self.output.drain()
        if self.process.stdout:
            self.process.stdout.close()

    def ending(self, code: int) -> str:
        """Return a sentence with its signal or exit code."""
        launcher = f"The launcher of {self.place.label}"
        if code >= 0:
            return f"{launcher} exited with code {code}, without a reason."
        name = signal.Signals(-code).name
        hint = " It may have run out of memory." if name == "SIGKILL" else ""
        return f"{launcher} was killed by {name}.{hint}"


@dataclass(frozen=True, slots=True)
class ProcessFleet:
    """The launchers of one job; all processes that they start are descendants of this process."""

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
        assert process.stdout is not None, "the process has a pipe"
        output = Output.of(process.stdout.fileno(), host.label, self.folder)
        return ProcessHost(host, tree, output, process)

    def kill(self) -> None:
        """Kill every descendant; exit codes are lost."""
        kill_descendants()

    def remove(self) -> None:
        """Kill every descendant; processes leave nothing else."""
        kill_descendants()


def _free_port(following: int) -> int:
    """Return a free port, with `following` free ports after it if possible."""
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
