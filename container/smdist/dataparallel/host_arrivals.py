# SPDX-License-Identifier: Apache-2.0
"""Wait of all hosts for each other before ranks start, through the store of torchrun.

    every host           sets the key of its own
    the first host       waits for the keys of all, then publishes the missing hosts: none
    every other host     waits for what the first one publishes

The first host publishes the missing hosts after the start timeout, too, so that the error names
them on every host.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from torch._C._distributed_c10d import Store

from sagemaker_dist.errors import LaunchError

_LOOK_SECONDS: Final = 1.0  # between two looks at who is missing
_READ_SECONDS: Final = 1.0  # time for the other hosts to read who is missing
_MARGIN_SECONDS: Final = 10.0  # by which other hosts wait longer than the first one
_RESULT: Final = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostArrivals:
    """One host's part in the wait. Thread safety: none.

    Attributes:
        hosts: Names of all hosts, the first one first.
        number: Number of this host in `hosts`.
        ranks_per_host: Number of ranks on each host.
        timeout_seconds: Seconds to wait for the other hosts.
        note: Function that is called with the names of the missing hosts, when they are known.
    """

    hosts: Sequence[str]
    number: int
    ranks_per_host: int
    timeout_seconds: float
    note: Callable[[Sequence[str]], None]

    def wait(self, store: Store) -> None:
        """Wait until all hosts have come.

        Args:
            store: Store of all hosts, in which the keys of this wait are not set yet.

        Raises:
            LaunchError: Hosts are missing after the timeout, or the first host has ended.
        """
        store.set(f"host/{self.number}", "")
        missing = self._collect(store) if self.number == 0 else self._result(store)
        if missing:
            raise self.absent(missing)
        self.note(())

    def absent(self, missing: Sequence[int]) -> LaunchError:
        """Return the error that names missing hosts, by their numbers."""
        names = ", ".join(self.hosts[number] for number in missing)
        have = "has" if len(missing) == 1 else "have"
        return LaunchError(
            f"{names} {have} not joined the job within {self.timeout_seconds:g} s",
            "ranks start only after all hosts have joined",
            f"Read the logs of {names}; if such a host only starts slowly, raise"
            " start_timeout_seconds",
            about="start_timeout_seconds",
            kind="timeout",
            culprit=missing[0] * self.ranks_per_host,
        )

    def _collect(self, store: Store) -> list[int]:
        """Wait for all hosts, publish which ones are missing, and return their numbers."""
        deadline = time.monotonic() + self.timeout_seconds
        missing = list(range(1, len(self.hosts)))
        while missing and (left := deadline - time.monotonic()) > 0:
            with suppress(RuntimeError):  # not yet
                keys = [f"host/{number}" for number in missing]
                store.wait(keys, timedelta(seconds=min(left, _LOOK_SECONDS)))
            missing = [number for number in missing if not store.check([f"host/{number}"])]
            self.note([self.hosts[number] for number in missing])
        store.set(_RESULT, json.dumps(missing))
        if missing:
            time.sleep(_READ_SECONDS)
        return missing

    def _result(self, store: Store) -> list[int]:
        """Return the numbers of the missing hosts that the first host publishes."""
        self.note(())
        deadline = time.monotonic() + self.timeout_seconds + _MARGIN_SECONDS
        try:
            store.wait([_RESULT], timedelta(seconds=self.timeout_seconds + _MARGIN_SECONDS))
            found: list[int] = json.loads(store.get(_RESULT))
        except RuntimeError as error:
            if time.monotonic() >= deadline:
                return [0]
            raise LaunchError(
                f"{self.hosts[0]} has ended before all hosts have joined the job",
                "its launcher has the store through which hosts find each other",
                f"Read the log of {self.hosts[0]}",
                kind="lost",
                culprit=0,
            ) from error
        return found
