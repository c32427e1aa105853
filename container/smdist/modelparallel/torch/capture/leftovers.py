# SPDX-License-Identifier: Apache-2.0
"""Tensors without numbers that a run left in the caches of functions.

`@lru_cache` on a function that makes a mask is common. After a run on fakes such a cache holds one,
and the next real run would get it.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterable
from typing import Any
from weakref import ReferenceType

from torch import Tensor

_DEPTH = 5


def clear_caches(made: Iterable[ReferenceType[Tensor]]) -> None:
    """Clear every cache that holds one of these; look only where some are still alive."""
    alive = {id(tensor) for tensor in (reference() for reference in made) if tensor is not None}
    if not alive:
        return
    caches = [each for each in gc.get_objects() if type(each) is functools._lru_cache_wrapper]
    for cache in caches:
        if cache.cache_info().currsize and _holds(cache, alive, _DEPTH):
            cache.cache_clear()


def _holds(item: Any, alive: set[int], depth: int) -> bool:
    for inside in gc.get_referents(item):
        if id(inside) in alive:
            return True
        is_part = isinstance(inside, (dict, list, tuple)) or "lru" in type(inside).__name__
        if depth and is_part and _holds(inside, alive, depth - 1):
            return True
    return False
