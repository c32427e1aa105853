# SPDX-License-Identifier: Apache-2.0
"""Copy of the hosts' output to the log of a job.

Output is split into segments: each ends in a line break or, for a progress bar, in a carriage
return. all.log has whole segments of all hosts, in the order of arrival.

first GiB of a host     all.log, as it arrives
what follows            counted, and not kept
the host's last MiB     all.log, when the host ends, after a line that says how much was left out
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.runners.local.job_folder import JobFolder, append
from sagemaker_dist.runners.protocol import MAX_LOG_BYTES

_LAST_BYTES: Final = 1 << 20
_MAX_SEGMENT_BYTES: Final = 1 << 20
_BREAK: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(slots=True)
class Segments:
    """Splitter of a byte stream into segments; each ends in a line break or a carriage return."""

    rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the next bytes of the stream, and yield the segments that are now complete.

        A segment ends in a line break or a carriage return.
        """
        data, start = self.rest + data, 0
        for match in _BREAK.finditer(data):  # faster than a search for whole lines
            yield data[start : match.end()]
            start = match.end()
        self.rest = data[start:]
        if len(self.rest) > _MAX_SEGMENT_BYTES:
            yield from self.close()

    def close(self) -> Iterator[bytes]:
        """Add a line break to the bytes after the last complete segment, and yield the result.

        Yield nothing if there are no such bytes.
        """
        if self.rest:
            yield self.rest + b"\n"
        self.rest = b""


@dataclass(slots=True)
class Output:
    """Output of one host, copied from a non-blocking pipe to the job's log.

    Attributes:
        source: Read end of the pipe.
        label: Name of the host, such as "algo-1".
        log: File for the output of all hosts; each line begins with the host's name.
        num_kept: Bytes of this host that were written to `log`.
        last: The newest segments after the limit, which are written when the host ends.
        num_cut: Bytes that were left out because of the limit.
        num_lost: Bytes that `log` lacks, because of the limit or because the disk was full.
    """

    source: int
    label: str
    log: Path
    segments: Segments = field(default_factory=Segments)
    num_kept: int = 0
    last: deque[bytes] | None = None
    num_cut: int = 0
    num_lost: int = 0

    @classmethod
    def of(cls, source: int, label: str, folder: JobFolder) -> Output:
        """Return an object that copies the output of one host to the log of a job.

        `source` is the read end of the pipe with the output, `label` the host's name, such as
        "algo-1".
        """
        os.set_blocking(source, False)
        return cls(source, label, folder.all_log)

    def read(self) -> bool:
        """Copy the available output to the log, and return whether more may come.

        False means the end of the stream.
        """
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return True
        self._write(self.segments.feed(data) if data else self.segments.close())
        return bool(data)

    def drain(self) -> None:
        """Copy all available output to the log, including a last line without a line break."""
        try:
            while data := os.read(self.source, 1 << 16):
                self._write(self.segments.feed(data))
        except BlockingIOError:
            pass
        self._write(self.segments.close())
        self._write_last()

    def _write(self, segments: Iterator[bytes]) -> None:
        prefix = f"[{self.label}".encode()
        lines = [s if s.startswith(prefix) else prefix + b"] " + s for s in segments]
        if self.last is None and self.num_kept + sum(map(len, lines)) > MAX_LOG_BYTES:
            self._note(f"has written {self.num_kept:,} bytes; its last lines follow when it ends")
            self.last = deque()
        if self.last is None:
            self._append(b"".join(lines))
        else:
            self._hold(self.last, lines)

    def _hold(self, last: deque[bytes], lines: list[bytes]) -> None:
        """Add lines to the newest ones, and leave out the oldest ones of them."""
        last.extend(lines)
        held = sum(map(len, last))
        while held > _LAST_BYTES:
            self.num_cut += len(last[0])
            held -= len(last.popleft())

    def _write_last(self) -> None:
        if self.last is None:
            return
        self._note(f"wrote {self.num_cut:,} more bytes, which were left out; its last lines follow")
        self._append(b"".join(self.last))
        self.last.clear()
        self.num_lost += self.num_cut
        self.num_cut = 0

    def _note(self, text: str) -> None:
        append(self.log, f"[sagemaker-dist] {self.label} {text}\n".encode())

    def _append(self, data: bytes) -> None:
        self.num_kept += len(data)
        self.num_lost += append(self.log, data)
