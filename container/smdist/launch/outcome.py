# SPDX-License-Identifier: Apache-2.0
"""Result of a run of one host's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from smdist.launch.guard_protocol import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run on this host.

    Attributes:
        status: Exit status of `train`; 0 on success.
        failure: Sentence that describes the failure; empty on success and after a stop.
        fields: The failure as fields for failure.json, by name; empty if there are none.
        culprit: Report of the rank that failed first; None if no rank failed by itself.
        signal: Number of the signal that ended the run; 0 if none did.
        was_ended: True if the ranks were ended because of another host.
        connected_at: Time when the last rank of this host connected to all others, in seconds since
            1970; None if no rank has.
    """

    status: int
    failure: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    culprit: Report | None = None
    signal: int = 0
    was_ended: bool = False
    connected_at: float | None = None
