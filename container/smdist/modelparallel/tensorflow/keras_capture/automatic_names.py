# SPDX-License-Identifier: Apache-2.0
"""Numbers in the names that Keras makes, such as "add_3", stay equal on all ranks.

Keras counts the objects of each class in a process. Ranks of a pipeline do different work, in which
they may make different objects, and the next model of the script would then have other names on
each rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from keras.src.backend.common import global_state

_COUNTERS: Final = "object_name_uids"


@contextmanager
def automatic_names_kept() -> Iterator[None]:
    """Let the block make objects without a change of the names of later ones; a decorator, too."""
    before = dict(global_state.get_global_attribute(_COUNTERS) or {})
    try:
        yield
    finally:
        global_state.set_global_attribute(_COUNTERS, defaultdict(int, before))
