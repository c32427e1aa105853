# SPDX-License-Identifier: Apache-2.0
"""Input channels of a local job; the input mode decides how a host finds the data.

File        the directory of the channel; data in S3 is downloaded first
FastFile    the same as File; SageMaker would read objects on demand
Pipe        FIFOs, into which local or downloaded files are written
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from sagemaker_dist.errors import JobError
from sagemaker_dist.planning import LocalChannel, LocalHost, LocalJob
from sagemaker_dist.runners.local.data.pipes import Pipe, Stream
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.opt_ml_tree import HostTree
from sagemaker_dist.runners.local.output import Segments
from sagemaker_dist.runners.local.process_tree import die_with_parent

DOWNLOADER: Final = "sagemaker_dist.runners.local.data.downloads"
_TICK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of this machine that a host finds below /opt/ml/input/data.

    Attributes:
        source: Absolute path on this machine, with links resolved.
        name: Path below input/data: "training", or "training/part.csv" for a single file.
        writable: Whether hosts may change the data.
    """

    source: Path
    name: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """The input data of one job.

    Attributes:
        environment: Environment variables for the process that downloads data, and for no other.
            An empty value removes an inherited variable.
        pipes: Pipes of all hosts; each host has one per channel in Pipe mode.
    """

    folder: JobFolder
    job: LocalJob
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    pipes: list[Pipe] = field(default_factory=list)

    @property
    def is_fetched(self) -> bool:
        """Return whether any channel has data that is copied or downloaded for the hosts."""
        return any(channel.is_fetched for channel in self.job.channels)

    def fetch(self, log: Callable[[str], None], check: Callable[[], None]) -> None:
        """Copy or download the data of all channels that need it, in a child process.

        `log` receives lines about the progress. `check` is called several times a second; an
        exception that it raises ends the copy.

        Raises:
            JobError: The data cannot be copied or downloaded.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", DOWNLOADER, str(self.folder.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert process.stdin is not None, "the process has pipes"
        assert process.stdout is not None, "the process has pipes"
        with process:
            try:
                with suppress(BrokenPipeError), process.stdin as sink:  # if it has ended already
                    sink.write(json.dumps(dict(self.environment)).encode())
                _read_messages(process.stdout, log, check)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise self._broken(process.returncode)

    def _broken(self, code: int) -> JobError:
        what = "the data of the job could not be downloaded"
        if code < 0:
            how = f"the download process was killed by {signal.Signals(-code).name}"
            hint = "It may have run out of memory: read the kernel's log"
            return JobError(what, how, hint, kind="killed")
        hint = f"Read {self.folder.logs / 'supervisor.log'}"
        return JobError(what, f"the download process exited with code {code}", hint)

    def mounts(self, host: LocalHost) -> list[Mount]:
        """Return the data that `host` finds below input/data: one mount per channel.

        Channels in Pipe mode have no mount; the host reads them from FIFOs.
        """
        return [
            _mount(channel, self._place(channel, host))
            for channel in self.job.channels
            if not channel.is_pipe
        ]

    def place(self, host: LocalHost, tree: HostTree) -> None:
        """Make the data of `host` available in `tree`, the host's /opt/ml.

        For a channel in Pipe mode, the FIFO of the first epoch is created; for any other channel, a
        symbolic link. This is for a host that runs as a process. A container gets the data by
        `mounts`.
        """
        self.open_pipes(host, tree)
        for mount in self.mounts(host):
            link = tree.data / mount.name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(mount.source)

    def open_pipes(self, host: LocalHost, tree: HostTree) -> None:
        """Create the FIFOs for the first epoch in `tree`, the /opt/ml of `host`.

        There is one FIFO per channel in Pipe mode. Data is written to the FIFOs after `feed` was
        called.
        """
        for channel in self.job.channels:
            if channel.is_pipe:
                pipe = Pipe(tree.data, channel.name, self._stream(channel, host))
                pipe.make(0)
                self.pipes.append(pipe)

    def feed(self) -> None:
        """Start one thread for each pipe, which writes the channel's data into the FIFOs.

        Call this after all hosts were started: a process that has threads should not fork.
        """
        for pipe in self.pipes:
            pipe.start()

    def fault(self) -> str:
        """Return the reason why a pipe failed, or "" if none has failed."""
        return next((pipe.fault for pipe in self.pipes if pipe.fault), "")

    def remove(self) -> None:
        """Stop the threads of all pipes, and remove copied data."""
        for pipe in self.pipes:
            pipe.stop()
        shutil.rmtree(self.folder.data, ignore_errors=True)

    def _place(self, channel: LocalChannel, host: LocalHost) -> Path:
        if channel.is_fetched:
            return self.folder.channel(channel, host).resolve()
        return Path(channel.path).resolve()

    def _stream(self, channel: LocalChannel, host: LocalHost) -> Stream:
        hosts = self.job.hosts if channel.is_sharded else (host,)
        return Stream(
            root=self._place(channel, host),
            gunzip=channel.gunzip,
            seed=channel.seed,
            host=hosts.index(host),
            num_hosts=len(hosts),
        )


def _read_messages(
    output: IO[bytes], log: Callable[[str], None], check: Callable[[], None]
) -> None:
    """Read the messages of the download process until it ends, and pass their texts to `log`.

    `output` is the read end of the process's standard output. `check` is called several times a
    second; an exception that it raises ends the reading.

    Raises:
        JobError: The download process reported this error.
    """
    segments = Segments()
    while True:
        check()
        if not select.select([output], [], [], _TICK_SECONDS)[0]:
            continue
        data = os.read(output.fileno(), 1 << 16)
        for line in segments.feed(data):
            message = json.loads(line)
            if "fault" in message:
                raise JobError(*message["fault"])
            log(message["log"])
        if not data:
            return


def _mount(channel: LocalChannel, source: Path) -> Mount:
    """Return the mount of a channel whose data is at `source`, a directory or a single file.

    A single file is mounted in the channel's directory, under its own name.
    """
    name = f"{channel.name}/{source.name}" if source.is_file() else channel.name
    return Mount(source=source, name=name, writable=channel.writable)
