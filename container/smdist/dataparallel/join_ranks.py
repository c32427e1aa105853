# SPDX-License-Identifier: Apache-2.0
"""Wait of a rank without more data, until all ranks have joined; the same for every framework.

The compiled class JoinedRank answers the all-reduces of the other ranks with zeros.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from smdist.dataparallel.rendezvous.engine_interface import EngineFault

_KIND: Final = "joined"
_MILLISECONDS: Final = 100  # between which Python can handle Ctrl-C


def join_ranks(
    module: Any, engine: Any, groups: Sequence[int], control: int, timeout_seconds: float
) -> int:
    """Contribute zeros to the all-reduces of other ranks until all ranks have called this.

    Args:
        module: The compiled module of the engine.
        engine: The connected engine, on which this rank has no running operation.
        groups: Numbers of groups with the same ranks, whose all-reduces are answered.
        control: Number of a group of these ranks that has no other operations.
        timeout_seconds: Seconds that the other ranks may take to join.

    Returns:
        The rank, by its number in the groups, that has joined last: the one that has started the
        most collectives, and of several the highest.

    Raises:
        RuntimeError: The engine has failed, for example because a rank was lost.
    """
    joined = module.JoinedRank(engine, list(groups), control, timeout_seconds)
    while not joined.advance(_MILLISECONDS):
        pass
    return int(joined.last)


def joined_rank(fault: EngineFault | None) -> int | None:
    """Return the rank that took no part in a collective because it had joined; None if none."""
    if fault is None or fault.kind != "usage" or not fault.details:
        return None
    try:
        details = json.loads(fault.details)
    except ValueError:
        return None
    is_joined = isinstance(details, dict) and details.get("kind") == _KIND
    return fault.culprit if is_joined else None
