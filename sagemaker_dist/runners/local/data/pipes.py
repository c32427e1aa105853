# SPDX-License-Identifier: Apache-2.0
"""Pipe mode: each epoch of a channel comes once, through a fifo of its own.

    training_0 ====> a reader opens it, reads all objects one after the other, sees the end
    training_1       is there before that, and so on, for as long as somebody reads

A reader that closes early has had its epoch. A fifo goes when its epoch is over,
so that who opens it again is told rather than left waiting.

One thread feeds each channel of each host. It waits for nothing that the job's
end would not end, and starts no process.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import select
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.runners.local.data.layout import in_order, part_of
from sagemaker_dist.runners.local.data.walk import files_below

_CHUNK_BYTES: Final = 1 << 20
_POLL_MS: Final = 100
_MAX_WAIT_SECONDS: Final = 0.05
_JOIN_SECONDS: Final = 2.0


class _Over(Exception):  # noqa: N818  nothing went wrong
    """The job has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """What one host reads of one channel.

    Attributes:
        root: The directory or file of the channel.
        seed: The order of objects is drawn from it anew for each epoch, or None.
        host: Its number; with `num_hosts` it gets its part of the objects.
    """

    root: Path
    gunzip: bool = False
    seed: int | None = None
    host: int = 0
    num_hosts: int = 1

    def objects(self, epoch: int) -> list[Path]:
        """The objects of an epoch, in their order."""
        files = [path for _, path in files_below(self.root)]
        return part_of(in_order(files, epoch, self.seed), self.host, self.num_hosts)

    def chunks(self, path: Path) -> Iterator[bytes]:
        """The bytes of one object."""
        with gzip.open(path) if self.gunzip else path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                yield data


@dataclass(slots=True)
class Pipe:
    """The fifos of one channel on one host.

    Thread safety: `feed` runs in one thread; the others are for the thread that
    starts it. `fault` is written once by the former.

    Attributes:
        fault: Why an epoch broke off, or "".
    """

    directory: Path
    channel: str
    stream: Stream
    fault: str = ""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def make(self, epoch: int) -> Path:
        """Make the fifo of one epoch, readable to whoever the host runs as."""
        path = self.directory / f"{self.channel}_{epoch}"
        with suppress(FileExistsError):
            os.mkfifo(path)
            path.chmod(0o644)
        return path

    def start(self) -> None:
        """Feed from now on."""
        self._thread = threading.Thread(target=self.feed, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The job is over: feed no longer."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def feed(self) -> None:
        """Feed epoch after epoch until the job is over."""
        epoch = 0
        try:
            while True:
                self._feed(epoch)
                epoch += 1
        except _Over:
            pass
        except Exception as error:
            self.fault = f"The pipe of channel {self.channel!r} failed in epoch {epoch}: {error}."

    def _feed(self, epoch: int) -> None:
        fifo = self.make(epoch)
        self.make(epoch + 1)
        with self._opened(fifo) as sink:
            try:
                for path in self.stream.objects(epoch):
                    self._send(sink, path)
            except BrokenPipeError:
                pass  # who closed early has had enough of this epoch
            fifo.unlink(missing_ok=True)

    def _send(self, sink: int, path: Path) -> None:
        for data in self._chunks(path):
            self._write(sink, data)

    def _chunks(self, path: Path) -> Iterator[bytes]:
        try:
            yield from self.stream.chunks(path)
        except (OSError, EOFError, zlib.error) as error:
            self.fault = f"Channel {self.channel!r} cannot be read: {path.name}: {error}."
            self._over.wait()  # an end would look like that of the epoch
            raise _Over from error

    @contextmanager
    def _opened(self, fifo: Path) -> Iterator[int]:
        sink = self._wait_for_reader(fifo)
        try:
            with suppress(OSError, AttributeError):  # a limit of the machine, or not Linux
                fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
            yield sink
        finally:
            os.close(sink)

    def _wait_for_reader(self, fifo: Path) -> int:
        pause = 0.001
        while True:
            try:
                return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.ENXIO:  # it has no reader yet
                    raise
            if self._over.wait(pause):
                raise _Over
            pause = min(2 * pause, _MAX_WAIT_SECONDS)

    def _write(self, sink: int, data: bytes) -> None:
        rest, poller = memoryview(data), select.poll()
        poller.register(sink, select.POLLOUT)
        while rest:
            if self._over.is_set():
                raise _Over
            try:
                rest = rest[os.write(sink, rest) :]
            except BlockingIOError:
                poller.poll(_POLL_MS)
