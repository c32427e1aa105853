# SPDX-License-Identifier: Apache-2.0
"""The launchers of a job, one per host, and what they say.

Output is split into segments that end in a line break or, for a progress bar,
in a carriage return. Segments of different hosts reach all.log whole, in the
order in which they came.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.runners.processes.code import Code, own_places
from sagemaker_dist.runners.processes.family import die_with_parent
from sagemaker_dist.runners.processes.folder import JobFolder, append
from sagemaker_dist.runners.processes.tree import HostTree, host_environment

LAUNCHER: Final = "smdist.launch"
_MAX_SEGMENT_BYTES: Final = 1 << 20
_SEGMENT: Final = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")


@dataclass(slots=True)
class Segments:
    """Cuts a stream of bytes into whole segments."""

    rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The segments that `data` completes."""
        data, start = self.rest + data, 0
        for match in _SEGMENT.finditer(data):
            start = match.end()
            yield match.group()
        self.rest = data[start:]
        if len(self.rest) > _MAX_SEGMENT_BYTES:
            yield from self.close()

    def close(self) -> Iterator[bytes]:
        """The last segment, which nothing completed."""
        if self.rest:
            yield self.rest + b"\n"
        self.rest = b""


@dataclass(slots=True)
class Launcher:
    """One host's launcher, running."""

    host: LocalHost
    tree: HostTree
    process: subprocess.Popen[bytes]
    log: Path
    all_log: Path
    asked: bool = False
    segments: Segments = field(default_factory=Segments)

    @classmethod
    def start(cls, folder: JobFolder, job: LocalJob, host: LocalHost, master_port: int) -> Launcher:
        """Make the host's tree and start its launcher in it."""
        tree = HostTree(folder.hosts / host.label)
        tree.create(job, host, folder.checkpoints(job), _code(folder, job))
        process = subprocess.Popen(
            [sys.executable, "-m", LAUNCHER],
            cwd=tree.root,
            env=host_environment(job, host, tree, master_port, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        os.set_blocking(_descriptor(process), False)
        return cls(host, tree, process, folder.logs / f"{host.label}.log", folder.all_log)

    def fileno(self) -> int:
        """Where its output comes from, for a selector."""
        return _descriptor(self.process)

    def read(self) -> bool:
        """Write down what it said; False once it will say no more."""
        try:
            data = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self._write(data, self.segments.feed(data) if data else self.segments.close())
        return bool(data)

    def terminate(self) -> None:
        """Ask it to stop; its ranks get their time."""
        self.asked = True
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Write down the rest of what it said, without waiting for more."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fileno(), 1 << 16):
                self._write(data, self.segments.feed(data))
        self._write(b"", self.segments.close())
        if self.process.stdout:
            self.process.stdout.close()

    def _write(self, data: bytes, segments: Iterator[bytes]) -> None:
        append(self.log, data)
        mark = f"[{self.host.label}".encode()
        lines = [s if s.startswith(mark) else mark + b"] " + s for s in segments]
        append(self.all_log, b"".join(lines))


def _code(folder: JobFolder, job: LocalJob) -> Code | None:
    source = job.source
    if source is None:
        return None
    return Code(
        folder=source.folder,
        only=source.only,
        dependencies=source.dependencies,
        own=own_places(folder.path, job.output, job.name),
    )


def _descriptor(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None, "the launcher was started with a pipe"
    return process.stdout.fileno()
