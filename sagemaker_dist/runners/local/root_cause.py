# SPDX-License-Identifier: Apache-2.0
"""Choice of the root cause among the failures of several hosts.

When one rank fails, its peers fail too. They often report that before the launcher of the first
rank does. A failure that another rank caused is secondary. The root cause is the first failure in
the order of the reports that is not secondary.
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
        text: Text that the launcher wrote to output/failure, or "".
        ending: Sentence on how the host ended, used if `text` is empty.
        was_stopped: Whether the supervisor stopped the host before it ended. Without a `text`, such
            an end does not count as a failure.
        fields: Fields that the launcher wrote to output/failure.json.
    """

    text: str
    ending: str
    was_stopped: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_secondary(self) -> bool:
        """Return whether the rank failed only because another rank had failed before."""
        return bool(self.fields.get("is_secondary"))


def choose_reason(failures: Sequence[Failure]) -> str:
    """Return the text of the root cause among the failures: the FailureReason of the job.

    `failures` are in the order of the reports.
    """
    candidates = [failure for failure in failures if failure.text or not failure.was_stopped]
    ordered = sorted(candidates, key=lambda failure: (failure.is_secondary, failure.was_stopped))
    if not ordered:
        return "A host failed."
    return (ordered[0].text or ordered[0].ending)[:MAX_CHARACTERS]
