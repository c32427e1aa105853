# SPDX-License-Identifier: Apache-2.0
"""Pipe mode: each epoch of a channel comes once, through a FIFO of its own.

    training_0 ====> a reader opens it, reads all objects one after the other, sees the end
    training_1       exists before that end, and so on for every further epoch

A reader that closes early has ended its epoch. A FIFO is removed after its epoch, so
that a reader which opens it again gets an error instead of waiting.

One thread feeds each channel of each host. All its waits end when the job ends, and it
starts no process.
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

from sagemaker_dist.runners.local.data.channel_layout import in_order, part_of
from sagemaker_dist.runners.local.data.local_files import files_below

_CHUNK_BYTES: Final = 1 << 20
_POLL_MS: Final = 100
_MAX_WAIT_SECONDS: Final = 0.05
_JOIN_SECONDS: Final = 2.0


class _Over(Exception):  # noqa: N818 - not an error
    """The job has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Data of one channel for one host.

    Attributes:
        root: Directory or file of the channel.
        seed: Seed for the order of objects, drawn anew for each epoch; None for no shuffling.
        host: Number of the host; with `num_hosts` it selects the host's objects.
    """

    root: Path
    gunzip: bool = False
    seed: int | None = None
    host: int = 0
    num_hosts: int = 1

    def objects(self, epoch: int) -> list[Path]:
        """Return the objects of an epoch, in order."""
        files = [path for _, path in files_below(self.root)]
        return part_of(in_order(files, epoch, self.seed), self.host, self.num_hosts)

    def chunks(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes of one object."""
        with gzip.open(path) if self.gunzip else path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                yield data


@dataclass(slots=True)
class Pipe:
    """The FIFOs of one channel on one host.

    Thread safety: `feed` runs in one thread; the other methods are for the thread that starts it.
    The feeding thread writes `fault` once.

    Attributes:
        fault: Why an epoch failed, or "".
    """

    directory: Path
    channel: str
    stream: Stream
    fault: str = ""
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def make(self, epoch: int) -> Path:
        """Create the FIFO of one epoch, readable for all users."""
        path = self.directory / f"{self.channel}_{epoch}"
        with suppress(FileExistsError):
            os.mkfifo(path)
            path.chmod(0o644)
        return path

    def start(self) -> None:
        """Start the feeding thread."""
        self._thread = threading.Thread(target=self.feed, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop feeding, because the job is over."""
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
                pass  # the reader closed early and ended this epoch
            fifo.unlink(missing_ok=True)

    def _send(self, sink: int, path: Path) -> None:
        for data in self._chunks(path):
            self._write(sink, data)

    def _chunks(self, path: Path) -> Iterator[bytes]:
        try:
            yield from self.stream.chunks(path)
        except (OSError, EOFError, zlib.error) as error:
            self.fault = f"Channel {self.channel!r} cannot be read: {path.name}: {error}."
            self._over.wait()  # closing the FIFO would look like the end of the epoch
            raise _Over from error

    @contextmanager
    def _opened(self, fifo: Path) -> Iterator[int]:
        sink = self._wait_for_reader(fifo)
        try:
            with suppress(OSError, AttributeError):  # over a limit of the machine, or not Linux
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
