# SPDX-License-Identifier: Apache-2.0
"""Copy of the hosts' output to the logs of a job.

Output is split into segments: each ends in a line break or, for a progress bar, in a carriage
return. all.log has whole segments of all hosts, in the order of arrival.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.runners.local.job_folder import JobFolder, append

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
    """Output of one host, copied from a non-blocking pipe to the job's logs.

    Attributes:
        source: Read end of the pipe.
        label: Name of the host, such as "algo-1".
        log: File for the output of this host.
        all_log: File for the output of all hosts; each line begins with the host's name.
        num_lost: Bytes that could not be written to `all_log`, because the disk was full.
    """

    source: int
    label: str
    log: Path
    all_log: Path
    segments: Segments = field(default_factory=Segments)
    num_lost: int = 0

    @classmethod
    def of(cls, source: int, label: str, folder: JobFolder) -> Output:
        """Return an object that copies the output of one host to the logs of a job.

        `source` is the read end of the pipe with the output, `label` the host's name, such as
        "algo-1".
        """
        os.set_blocking(source, False)
        return cls(source, label, folder.logs / f"{label}.log", folder.all_log)

    def read(self) -> bool:
        """Copy the available output to the logs, and return whether more may come.

        False means the end of the stream.
        """
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return True
        self._write(data, self.segments.feed(data) if data else self.segments.close())
        return bool(data)

    def drain(self) -> None:
        """Copy all available output to the logs, including a last line without a line break."""
        try:
            while data := os.read(self.source, 1 << 16):
                self._write(data, self.segments.feed(data))
        except BlockingIOError:
            pass
        self._write(b"", self.segments.close())

    def _write(self, data: bytes, segments: Iterator[bytes]) -> None:
        append(self.log, data)
        prefix = f"[{self.label}".encode()
        lines = [s if s.startswith(prefix) else prefix + b"] " + s for s in segments]
        self.num_lost += append(self.all_log, b"".join(lines))
