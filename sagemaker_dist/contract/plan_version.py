# SPDX-License-Identifier: Apache-2.0
"""Versions of the format of plan files, which the SDK and the runtime read.

| version | |
|---|---|
| 1 | the first |
| 2 | adds `tensor_parallel_degree` and `offload_activations` |

A plan is written in the newest version. Files of older versions lack the keys that came later,
which then have their defaults.
"""

from __future__ import annotations

from typing import Final

OLDEST: Final = 1
NEWEST: Final = 2
READ: Final = f"{OLDEST} to {NEWEST}"


def is_read(version: object) -> bool:
    """Return True if this release reads plans of a version, which may be any JSON value."""
    is_integer = isinstance(version, int) and not isinstance(version, bool)
    return is_integer and version in range(OLDEST, NEWEST + 1)


def is_newer(version: object) -> bool:
    """Return True if a later release wrote a plan of this version, which may be any JSON value."""
    return isinstance(version, int) and version > NEWEST
