# SPDX-License-Identifier: Apache-2.0
"""Result of a run of one host's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a run on this host.

    Attributes:
        status: Exit status of `train`; 0 on success.
        failure: Sentence that describes the failure; empty on success and after a stop.
        fields: The failure as fields for failure.json, by name; empty if there are none.
    """

    status: int
    failure: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
