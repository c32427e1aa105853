# SPDX-License-Identifier: Apache-2.0
"""Pipe mode: a host reads each epoch of a channel once, from a FIFO of its own.

    training_0 ====> the script opens it, and reads all objects one after the other until EOF
    training_1       the next epoch; the FIFO exists before the EOF of training_0

A script that closes the FIFO early ends its epoch. A FIFO is removed after its epoch: a script that
opens it again gets an error instead of waiting forever.

The FIFOs are in a directory that the host may write to, as on SageMaker, so the host could put a
link to a file of this machine in the place of a FIFO. The directory is therefore opened once,
before the host starts, and FIFOs are made, opened and checked by its descriptor, without following
links.

Each channel of each host has a thread that writes the data. The thread stops when the job ends.
"""

from __future__ import annotations

import errno
import fcntl
import gzip
import os
import select
import stat
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.runners.local.data.channel_layout import files_below, in_order, part_of
from sagemaker_dist.runners.local.tree_reader import open_directory

_CHUNK_BYTES: Final = 1 << 20
_POLL_MS: Final = 100
_MAX_WAIT_SECONDS: Final = 0.05
_JOIN_SECONDS: Final = 2.0


class _Over(Exception):  # noqa: N818 - not an error
    """Exception that ends the thread of a pipe, because the job has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Data of one channel for one host, epoch by epoch.

    Attributes:
        root: Directory or file with the data of the channel.
        gunzip: Whether objects are decompressed.
        seed: Seed for shuffling the objects, in a different order for each epoch; None for no
            shuffling.
        host: Index of the host, from 0 to `num_hosts` - 1. It selects the objects that the host
            gets.
        num_hosts: Number of hosts that share the objects; 1 if each host gets all of them.
    """

    root: Path
    gunzip: bool = False
    seed: int | None = None
    host: int = 0
    num_hosts: int = 1

    def objects(self, epoch: int) -> list[Path]:
        """Return the files of this host in an epoch, in the order in which they are sent."""
        files = [path for _, path in files_below(self.root)]
        return part_of(in_order(files, epoch, self.seed), self.host, self.num_hosts)

    def chunks(self, path: Path) -> Iterator[bytes]:
        """Yield the bytes of one file in chunks of at most 1 MiB.

        The bytes are decompressed if `gunzip` is true.
        """
        with gzip.open(path) if self.gunzip else path.open("rb") as file:
            while data := file.read(_CHUNK_BYTES):
                yield data


@dataclass(slots=True)
class Pipe:
    """The FIFOs of one channel on one host, and the thread that writes into them.

    Thread safety: `feed` runs in the thread, which writes `fault` once. All other methods are
    called by the thread that called `start`.

    Attributes:
        directory: Directory of the FIFOs.
        channel: Name of the channel.
        stream: Data that is written.
        fault: Reason why an epoch failed, or "".
    """

    directory: Path
    channel: str
    stream: Stream
    fault: str = ""
    _descriptor: int | None = None  # descriptor of `directory`
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def make(self, epoch: int) -> str:
        """Create the FIFO of the epoch with this number, and return its name in the directory.

        All users may read it. What exists in its place is kept, and is checked when it is opened.
        The first call opens the directory, so it must come before the host starts.

        Raises:
            OSError: The directory is a link, or cannot be written.
        """
        if self._descriptor is None:
            self._descriptor = open_directory(self.directory)
        name = f"{self.channel}_{epoch}"
        with suppress(FileExistsError):
            os.mkfifo(name, dir_fd=self._descriptor)
            reader = self._open(name, os.O_RDONLY)
            try:
                os.fchmod(reader, 0o644)  # chmod by name would follow a link
            finally:
                os.close(reader)
        return name

    def start(self) -> None:
        """Start the thread that writes the data."""
        self._thread = threading.Thread(target=self.feed, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread that writes the data, because the job has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        if self._descriptor is not None and not (self._thread and self._thread.is_alive()):
            os.close(self._descriptor)
            self._descriptor = None

    def feed(self) -> None:
        """Write the data of one epoch after the other into the FIFOs, until the job has ended."""
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
            with suppress(FileNotFoundError):
                os.unlink(fifo, dir_fd=self._descriptor)

    def _send(self, sink: int, path: Path) -> None:
        for data in self._chunks(path):
            self._write(sink, data)

    def _chunks(self, path: Path) -> Iterator[bytes]:
        try:
            yield from self.stream.chunks(path)
        except (OSError, EOFError, zlib.error) as error:
            self.fault = f"Channel {self.channel!r} cannot be read: {path.name}: {error}."
            self._over.wait()  # to the script, a closed FIFO would be the end of the epoch
            raise _Over from error

    @contextmanager
    def _opened(self, fifo: str) -> Iterator[int]:
        sink = self._wait_for_reader(fifo)
        try:
            with suppress(OSError, AttributeError):  # above this machine's limit, or not Linux
                fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
            yield sink
        finally:
            os.close(sink)

    def _wait_for_reader(self, fifo: str) -> int:
        pause = 0.001
        while True:
            try:
                return self._open(fifo, os.O_WRONLY)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: no process has opened it to read yet
                    raise
            if self._over.wait(pause):
                raise _Over
            pause = min(2 * pause, _MAX_WAIT_SECONDS)

    def _open(self, fifo: str, flags: int) -> int:
        """Return the descriptor of a FIFO, opened without waiting for the other side.

        Raises:
            OSError: It is no FIFO, is missing, or (for writing) no process has opened it to read.
        """
        flags |= os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(fifo, flags, dir_fd=self._descriptor)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no FIFO", fifo)
        return descriptor

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
