# SPDX-License-Identifier: Apache-2.0
"""Stacks and kernel states of ranks that did not come to an operation before its timeout.

The ranks that waited name them in the fields of the failure. Their own stacks, and the kernel state
of a process that did not run, are in files of their hosts, which may not have failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sagemaker_dist.debugging import FOLDER
from sagemaker_dist.runners.local.opt_ml_tree import OUTPUT_DATA, HostTree
from sagemaker_dist.runners.local.tree_reader import read_start

_MAX_STACKS: Final = 4096  # bytes of one rank
_MAX_STATE: Final = 4096


def with_evidence(fields: Mapping[str, Any], trees: Iterable[HostTree]) -> dict[str, Any]:
    """Return the fields of a failure, with "stacks" and "kernel_state" added to each late rank.

    Each is None if the rank has left no such file. Fields without late ranks are returned as they
    are.

    Args:
        fields: Fields of the failure.
        trees: The /opt/ml of each host.
    """
    late = fields.get("late_ranks")
    if not isinstance(late, list):
        return dict(fields)
    places = list(trees)
    found = [_add(each, places) for each in late if isinstance(each, dict)]
    return {**fields, "late_ranks": found}


def _add(late: Mapping[str, Any], trees: list[HostTree]) -> dict[str, Any]:
    rank = late.get("rank")
    if not isinstance(rank, int):
        return dict(late)
    stacks = _read(trees, f"stacks-rank-{rank}.txt", _MAX_STACKS).decode(errors="replace")
    return {**late, "stacks": stacks or None, "kernel_state": _state(trees, rank)}


def _state(trees: list[HostTree], rank: int) -> dict[str, Any] | None:
    try:
        found = json.loads(_read(trees, f"state-rank-{rank}.json", _MAX_STATE))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _read(trees: list[HostTree], name: str, max_bytes: int) -> bytes:
    path = f"{OUTPUT_DATA}/{FOLDER}/{name}"
    return next(filter(None, (read_start(tree.root, path, max_bytes) for tree in trees)), b"")
