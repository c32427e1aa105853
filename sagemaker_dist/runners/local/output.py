# SPDX-License-Identifier: Apache-2.0
"""What the hosts of a job say, cut into segments and written down.

A segment ends in a line break or, for a progress bar, in a carriage return.
Segments of different hosts reach all.log whole, in the order in which they came.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sagemaker_dist.runners.local.folder import JobFolder, append

_MAX_SEGMENT_BYTES: Final = 1 << 20
_BREAK: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(slots=True)
class Segments:
    """Cuts a stream of bytes into whole segments."""

    rest: bytes = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The segments that `data` completes."""
        data, start = self.rest + data, 0
        for match in _BREAK.finditer(data):  # a search for lines would try at each byte
            yield data[start : match.end()]
            start = match.end()
        self.rest = data[start:]
        if len(self.rest) > _MAX_SEGMENT_BYTES:
            yield from self.close()

    def close(self) -> Iterator[bytes]:
        """The last segment, which nothing completed."""
        if self.rest:
            yield self.rest + b"\n"
        self.rest = b""


@dataclass(slots=True)
class Output:
    """The output of one host, from a pipe that does not block to the logs of its job.

    Attributes:
        source: Read end of the pipe.
    """

    source: int
    label: str
    log: Path
    all_log: Path
    segments: Segments = field(default_factory=Segments)

    @classmethod
    def of(cls, source: int, label: str, folder: JobFolder) -> Output:
        """From the pipe `source` to the logs in `folder`."""
        os.set_blocking(source, False)
        return cls(source, label, folder.logs / f"{label}.log", folder.all_log)

    def read(self) -> bool:
        """Write down what came; False once no more will come."""
        try:
            data = os.read(self.source, 1 << 16)
        except BlockingIOError:
            return True
        self._write(data, self.segments.feed(data) if data else self.segments.close())
        return bool(data)

    def drain(self) -> None:
        """Write down what is there already, and the last segment."""
        try:
            while data := os.read(self.source, 1 << 16):
                self._write(data, self.segments.feed(data))
        except BlockingIOError:
            pass
        self._write(b"", self.segments.close())

    def _write(self, data: bytes, segments: Iterator[bytes]) -> None:
        append(self.log, data)
        mark = f"[{self.label}".encode()
        lines = [s if s.startswith(mark) else mark + b"] " + s for s in segments]
        append(self.all_log, b"".join(lines))
