# SPDX-License-Identifier: Apache-2.0
"""The channels of a job, as its hosts see them.

File        the directory of the channel; what lies in S3 is downloaded first
FastFile    the same: where SageMaker reads on demand, this job downloads first too
Pipe        fifos, fed from what lies on this machine or was downloaded
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from sagemaker_dist.errors import JobError
from sagemaker_dist.planning import LocalChannel, LocalHost, LocalJob
from sagemaker_dist.runners.local.data.pipes import Pipe, Stream
from sagemaker_dist.runners.local.data.places import channel_directory, data_directory
from sagemaker_dist.runners.local.family import die_with_parent
from sagemaker_dist.runners.local.folder import JobFolder
from sagemaker_dist.runners.local.output import Segments
from sagemaker_dist.runners.local.tree import HostTree

DOWNLOADER: Final = "sagemaker_dist.runners.local.data.downloads"
PRIVATE: Final = "SAGEMAKER_DIST_DOWNLOADS"  # JSON: the environment of the downloader alone
_TICK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or directory of this machine that a host finds below input/data.

    Attributes:
        source: Where it lies, absolute and without links.
        name: Where the host finds it: "training", or "training/part.csv" for a single file.
        writable: Whether hosts may change it.
    """

    source: Path
    name: str
    writable: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """The data of one job.

    Attributes:
        environment: Variables of the process that downloads, and of no other;
            an empty one takes away what it would inherit.
    """

    folder: JobFolder
    job: LocalJob
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    pipes: list[Pipe] = field(default_factory=list)

    @property
    def is_fetched(self) -> bool:
        """Whether something must be brought before hosts can start."""
        return any(channel.is_fetched for channel in self.job.channels)

    def fetch(self, say: Callable[[str], None], check: Callable[[], None]) -> None:
        """Bring what lies elsewhere; `check` is called all the while, and what it raises ends it.

        Raises:
            JobError: It cannot be brought.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", DOWNLOADER, str(self.folder.path)],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        assert process.stdout is not None, "it was started with a pipe"
        with process:
            try:
                _listen(process.stdout, say, check)
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            raise self._broken(process.returncode)

    def _broken(self, code: int) -> JobError:
        what = "the data of the job was not brought"
        if code < 0:
            how = f"the process that does it was killed by {signal.Signals(-code).name}"
            return JobError(what, how, "It may have run out of memory: see the kernel's log")
        mend = f"Read {self.folder.logs / 'supervisor.log'}"
        return JobError(what, f"the process that does it ended with code {code}", mend)

    def _environment(self) -> dict[str, str]:
        taken = {name for name, value in self.environment.items() if not value}
        given = {**os.environ, **self.environment}
        return {name: value for name, value in given.items() if name not in taken}

    def mounts(self, host: LocalHost) -> list[Mount]:
        """What `host` finds in the directories of its channels."""
        return [
            _mount(channel, self._place(channel, host))
            for channel in self.job.channels
            if not channel.is_pipe
        ]

    def place(self, host: LocalHost, tree: HostTree) -> None:
        """Link what `host` finds into its tree, where it sees this machine's disk."""
        self.open_pipes(host, tree)
        for mount in self.mounts(host):
            link = tree.data / mount.name
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(mount.source)

    def open_pipes(self, host: LocalHost, tree: HostTree) -> None:
        """Make the first fifos of `host`; `feed` begins to fill them."""
        for channel in self.job.channels:
            if channel.is_pipe:
                pipe = Pipe(tree.data, channel.name, self._stream(channel, host))
                pipe.make(0)
                self.pipes.append(pipe)

    def feed(self) -> None:
        """Start a thread for each pipe: once all hosts run, for nothing may fork after it."""
        for pipe in self.pipes:
            pipe.start()

    def fault(self) -> str:
        """Why a pipe broke off, or nothing."""
        return next((pipe.fault for pipe in self.pipes if pipe.fault), "")

    def remove(self) -> None:
        """Stop all pipes and remove what was brought."""
        for pipe in self.pipes:
            pipe.stop()
        shutil.rmtree(data_directory(self.folder), ignore_errors=True)

    def _place(self, channel: LocalChannel, host: LocalHost) -> Path:
        if channel.is_fetched:
            return channel_directory(self.folder, channel, host).resolve()
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


def _listen(output: IO[bytes], say: Callable[[str], None], check: Callable[[], None]) -> None:
    """Pass on what the downloading process says until it is done, and raise what it reports."""
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
            say(message["say"])
        if not data:
            return


def _mount(channel: LocalChannel, source: Path) -> Mount:
    """A file:// place may be one file; its channel holds that file."""
    name = f"{channel.name}/{source.name}" if source.is_file() else channel.name
    return Mount(source=source, name=name, writable=channel.writable)
