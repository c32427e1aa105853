# SPDX-License-Identifier: Apache-2.0
"""What a rank holds during a step, counted: now and at most."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Count:
    """An amount that comes and goes."""

    now: int = 0
    peak: int = 0

    def add(self, amount: int) -> None:
        """Negative: it goes."""
        self.now += amount
        self.peak = max(self.peak, self.now)


@dataclass(slots=True)
class Ledger:
    """Of one executor, since it was made or since `restart()`.

    Attributes:
        receive_bytes: In buffers that messages are received into: from when one is posted until
            the action that reads it has ended.
        send_bytes: In what was handed over to be sent, and has perhaps not left yet.
        held: Pairs of stage and microbatch that ran forward and not yet all the way back.
    """

    receive_bytes: Count = field(default_factory=Count)
    send_bytes: Count = field(default_factory=Count)
    held: Count = field(default_factory=Count)

    def restart(self) -> None:
        """Begin peaks anew."""
        for count in (self.receive_bytes, self.send_bytes, self.held):
            count.peak = count.now
