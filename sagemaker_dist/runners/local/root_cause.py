# SPDX-License-Identifier: Apache-2.0
"""Choice of the root cause among the failures of several hosts.

When one rank dies, its peers fail too, and often report it earlier than the launcher of the dead
rank. A failure that another rank caused is secondary; of the others, the earliest is the cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MAX_CHARACTERS: Final = 1024  # FailureReason of DescribeTrainingJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Failure of one host.

    Attributes:
        text: Text of the launcher in output/failure, or "".
        ending: Sentence on how the host ended, used without a text.
        was_stopped: Whether the host ended after the supervisor stopped it; then its end
                alone is not a cause.
        fields: Data of the launcher in output/failure.json.
    """

    text: str
    ending: str
    was_stopped: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_secondary(self) -> bool:
        """Return whether the failed rank only lost another one, as its launcher found."""
        return bool(self.fields.get("is_secondary"))


def choose_reason(failures: Sequence[Failure]) -> str:
    """Return the reason to report, from failures in the order of arrival."""
    candidates = [failure for failure in failures if failure.text or not failure.was_stopped]
    ordered = sorted(candidates, key=lambda failure: (failure.is_secondary, failure.was_stopped))
    if not ordered:
        return "A host failed."
    return (ordered[0].text or ordered[0].ending)[:MAX_CHARACTERS]
