# SPDX-License-Identifier: Apache-2.0
"""Hosts as processes of this machine: each is a launcher with a loopback address of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.runners.local.data.channels import Data
from sagemaker_dist.runners.local.fleet import Host
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.opt_ml_tree import HostTree, host_environment
from sagemaker_dist.runners.local.output import Output
from sagemaker_dist.runners.local.process_tree import die_with_parent, kill_descendants, kill_marked

LAUNCHER: Final = "smdist.launch"
_PORTS_PER_HOST: Final = 3  # TensorFlow's servers: chief, worker and parameter server
_OTHER_PORTS: Final = 1  # coordinator of restarts
_PORTS: Final = range(10_000, 30_000)  # below those that kernels give to connections
_TRIES: Final = 20


@dataclass(slots=True)
class ProcessHost:
    """Host of a local job without containers. The process of its launcher stands for the host."""

    place: LocalHost
    tree: HostTree
    output: Output
    process: subprocess.Popen[bytes]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    was_stopped: bool = False

    def fileno(self) -> int:
        """Return the file descriptor of the host's output."""
        return self.output.source

    def poll(self) -> int | None:
        """Return the launcher's exit code, or minus the number of the signal that killed it.

        Return None while the launcher runs.
        """
        return self.process.poll()

    def terminate(self) -> None:
        """Send SIGTERM to the launcher."""
        self.was_stopped = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Write the rest of the output to the logs, and close the pipe; later calls do nothing."""
        if self.process.stdout and not self.process.stdout.closed:
            self.output.drain()
            self.process.stdout.close()

    def ending(self, code: int) -> str:
        """Return a sentence with the launcher's exit code or signal.

        The caller uses this sentence if the host wrote no file output/failure. `code` is the exit
        code that `poll` returned.
        """
        launcher = f"The launcher of {self.place.label}"
        if code >= 0:
            return f"{launcher} exited with code {code} and gave no reason."
        name = signal.Signals(-code).name
        hint = " It may have run out of memory." if name == "SIGKILL" else ""
        return f"{launcher} was killed by {name}.{hint}"


@dataclass(frozen=True, slots=True)
class ProcessFleet:
    """All hosts of a job as processes, which are children of the job's supervisor process."""

    folder: JobFolder
    job: LocalJob
    data: Data

    def start(self) -> list[ProcessHost]:
        """Start one launcher process per host, and return the hosts."""
        port = _free_port(_PORTS_PER_HOST * len(self.job.hosts) + _OTHER_PORTS)
        return [self._start(host, port) for host in self.job.hosts]

    def _start(self, host: LocalHost, master_port: int) -> ProcessHost:
        tree = HostTree(self.folder.hosts / host.label)
        tree.create(self.job, host, self.folder)
        tree.link_checkpoints(self.job, self.folder.checkpoints(self.job))
        self.data.place(host, tree)
        return self._launch(
            host, tree, host_environment(self.job, host, tree, master_port, os.environ)
        )

    def _launch(
        self, host: LocalHost, tree: HostTree, environment: Mapping[str, str]
    ) -> ProcessHost:
        process = subprocess.Popen(
            [sys.executable, "-m", LAUNCHER],
            cwd=tree.root,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert process.stdout is not None, "the process has a pipe"
        output = Output.of(process.stdout.fileno(), host.label, self.folder)
        return ProcessHost(host, tree, output, process, environment)

    def replace(self, host: Host) -> ProcessHost:
        """Kill what is left of a host whose launcher was killed, and start its launcher again."""
        assert isinstance(host, ProcessHost)
        base = "SAGEMAKER_BASE_DIR"
        kill_marked(base, host.environment[base])
        host.tree.renew(self.folder)
        return self._launch(host.place, host.tree, host.environment)

    def kill(self) -> None:
        """Kill all processes of the job: all descendants of this process.

        Their exit codes are not available afterwards.
        """
        kill_descendants()

    def remove(self) -> None:
        """Kill every process of the job; there is nothing else to remove."""
        kill_descendants()


def _free_port(following: int) -> int:
    """Return a free TCP port of 127.0.0.1, which no connection takes before the job listens there.

    If possible, the `following` ports after it are free, too.
    """
    for _ in range(_TRIES):
        port = secrets.choice(_PORTS)
        if all(_is_free(port + number) for number in range(following + 1)):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen: int = probe.getsockname()[1]
        return chosen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
