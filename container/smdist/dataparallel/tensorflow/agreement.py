# SPDX-License-Identifier: Apache-2.0
"""What ranks have to agree on beside shapes: which variables these are, and in which order.

Keras numbers layers through the life of a process, and a model that was loaded has shorter
paths than one that was built. So the last two parts of a name count, without their numbers:

sequential_1/dense_7/kernel    dense 0 kernel
sequential_1/dense_7/bias      dense 0 bias
sequential_1/dense_8/kernel    dense 1 kernel
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from smdist.dataparallel.tensorflow.library import tf

_NUMBER: Final = re.compile(r"_\d+(?=_|$)")
_UNNAMED: Final = ("", "variable", "Variable")


def mark_of(text: str) -> int:
    """A number for all_reduce(): the same for the same text, at least 1, below 2**31."""
    return crc32(text.encode()) >> 1 or 1


def names_of(variables: Iterable[Any], is_brief: bool = False) -> list[str]:
    """A name for each that is the same on ranks which built other models before.

    Args:
        variables: Of TensorFlow or Keras. Whatever else stands there, and a variable without
            a name of its own, is "".
        is_brief: Of what an optimizer keeps the last word only: its names contain paths.
    """
    owners = _Owners()
    return [owners.spelt(path_of(each), is_brief) for each in variables]


@dataclass(slots=True)
class _Owner:
    number: int
    leaves: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Owners:
    """Layers that own variables, numbered as they come; one that has a leaf twice is two."""

    latest: dict[str, _Owner] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def spelt(self, path: str, is_brief: bool) -> str:
        prefix, _, last = path.rpartition("/")
        leaf = _NUMBER.sub("", last)
        if leaf in _UNNAMED:
            return ""
        leaf = leaf.rpartition("_")[-1] if is_brief else leaf
        kind = _NUMBER.sub("", prefix.rpartition("/")[-1])
        return f"{kind} {self._number(prefix, kind, leaf)} {leaf}"

    def _number(self, prefix: str, kind: str, leaf: str) -> int:
        owner = self.latest.get(prefix)
        if owner is None or leaf in owner.leaves:
            owner = self.latest[prefix] = _Owner(self.counts.get(kind, 0))
            self.counts[kind] = owner.number + 1
        owner.leaves.add(leaf)
        return owner.number


def path_of(variable: Any) -> str:
    """Its name with the names of its layers; "" for what is no variable."""
    if isinstance(variable, tf.Variable):
        return str(variable.name).partition(":")[0]
    return str(getattr(variable, "path", ""))  # a Keras variable has one
