# SPDX-License-Identifier: Apache-2.0
"""Exit statuses of the job's ranks that have ended, as the launchers tell each other.

A rank that leaves by `os._exit(0)` says nothing to the others: they lose a connection, and only the
launcher of its host knows that it ended without an error. `host_watch` carries the statuses between
the launchers, so that the failure of a rank elsewhere names the rank that left.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from smdist.launch.launcher_link import LinkError


class RankEnds:
    """Exit statuses by rank, as a shell has them. Thread safety: any thread may call any method."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._own: dict[int, int] = {}
        self._known: dict[int, int] = {}

    def add_own(self, rank: int, status: int) -> None:
        """Add a rank of this host."""
        with self._changed:
            self._own[rank] = status
        self.add({rank: status})

    def add(self, statuses: Mapping[int, int]) -> None:
        """Add ranks of any host."""
        with self._changed:
            self._known.update(statuses)
            self._changed.notify_all()

    def own(self) -> dict[int, int]:
        """Return the ranks of this host that have ended."""
        with self._changed:
            return dict(self._own)

    def known(self) -> dict[int, int]:
        """Return the ranks of all hosts that are known to have ended."""
        with self._changed:
            return dict(self._known)

    def wait(self, rank: int, seconds: float) -> int | None:
        """Return the status of a rank, as soon as it is known; None after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: rank in self._known, seconds)
            return self._known.get(rank)


def encode(statuses: Mapping[int, int]) -> list[list[int]]:
    """Return statuses as JSON has them in a message between launchers."""
    return [[rank, status] for rank, status in sorted(statuses.items())]


def decode(found: object) -> dict[int, int]:
    """Return the statuses of a message that has them in its field "ends".

    Raises:
        LinkError: The field is not what `encode` returns.
    """
    pairs: list[Any] = found if isinstance(found, list) else [None]
    for pair in pairs:
        if not isinstance(pair, list) or [int, int] != [type(each) for each in pair]:
            raise LinkError("a message is not of this release")
    return dict(pairs)
