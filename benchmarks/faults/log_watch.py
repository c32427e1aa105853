# SPDX-License-Identifier: Apache-2.0
"""Time at which a line first stands in the logs of a job."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable


class LogWatch:
    """Thread that reads logs until they have a line. Use it as a `with` statement.

    Attributes:
        at: Time on the monotonic clock at which the line was found; None until then.
        line: The line.

    Args:
        read: Function that returns all that the logs have.
        pattern: Regular expression of a part of the line; "" to look for none.
    """

    def __init__(self, read: Callable[[], str], pattern: str) -> None:
        self.at: float | None = None
        self.line = ""
        self._read = read
        self._pattern = re.compile(f".*(?:{pattern}).*")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch) if pattern else None

    def __enter__(self) -> LogWatch:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, deadline: float) -> None:
        """Wait until the line is there, or until a time on the monotonic clock."""
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def _watch(self) -> None:
        while self.at is None and not self._over.wait(0.1):
            if found := self._pattern.search(self._read()):
                self.at, self.line = time.monotonic(), found[0]
