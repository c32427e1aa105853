# SPDX-License-Identifier: Apache-2.0
"""Error of an elastic job that cannot go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sagemaker_dist.errors import DistError


class ElasticError(DistError):
    """Error raised when an elastic job cannot go on after the loss of hosts.

    Attributes:
        kind: "too_few_hosts" (fewer hosts are left than elastic_min), "no_majority" (hosts are
            silent, and may train on elsewhere), "finished" (another host has ended with success),
            "dropped" (the other hosts go on without this one) or "launcher_lost" (the launcher of
            this host has ended).
        lost: The hosts that were lost, each as a dict with "host", "why" and "is_certain".
    """

    default_kind = "elastic"
    own_fields: ClassVar[tuple[str, ...]] = ("lost",)
    lost: Sequence[dict[str, Any]] = ()


class BrokenGenerationError(Exception):
    """Raised inside `run` when a host was lost while the ranks that are left connect."""
