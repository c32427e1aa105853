# SPDX-License-Identifier: Apache-2.0
"""Which of several failures is the one to tell.

When one rank dies, its peers fail too, and often sooner than the launcher of
the first has written down why. A text that only says that a peer is gone is
secondary; among the others, the earliest is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_CHARACTERS: Final = 1024  # FailureReason of DescribeTrainingJob
_SECONDARY: Final = re.compile(
    r"PeerError|closed its connection|has left the group"  # smdist
    r"|\brank \d+ on \S+ raised |AbortedError"  # smdist, and TensorFlow for it
    r"|DistBackendError"  # NCCL
    r"|Connection closed by peer"  # Gloo
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How one host ended.

    Attributes:
        text: What the launcher wrote to output/failure.
        ending: How it ended, in a sentence, for where it wrote nothing.
        asked: It ended after it was asked to, so its end is no cause by itself.
    """

    text: str
    ending: str
    asked: bool = False

    @property
    def is_secondary(self) -> bool:
        """Whether its text only tells of a peer."""
        return bool(_SECONDARY.search(self.text))


def choose_reason(failures: Sequence[Failure]) -> str:
    """The reason to tell, of failures in the order in which they came."""
    telling = [failure for failure in failures if failure.text or not failure.asked]
    ordered = sorted(telling, key=lambda failure: (failure.is_secondary, failure.asked))
    if not ordered:
        return "A host failed."
    return (ordered[0].text or ordered[0].ending)[:MAX_CHARACTERS]
