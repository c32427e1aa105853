# SPDX-License-Identifier: Apache-2.0
"""Signature of variables that ranks compare beside shapes: names and order.

Keras numbers layers through the life of a process, and a loaded model has shorter
paths than a built one. So a signature keeps the last two parts of a name, without their
numbers, and numbers the layers of each name again:

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

from smdist.dataparallel.tensorflow.op_library import tf

_NUMBER: Final = re.compile(r"_\d+(?=_|$)")
_UNNAMED: Final = ("", "variable", "Variable")


def mark_of(text: str) -> int:
    """Return a hash for the mark of all_reduce(), at least 1 and below 2**31."""
    return crc32(text.encode()) >> 1 or 1


def names_of(variables: Iterable[Any], is_brief: bool = False) -> list[str]:
    """Return a name for each variable that does not depend on models built earlier.

    Args:
        variables: Variables of TensorFlow or Keras. The name of any other object, and of
            an unnamed variable, is "".
        is_brief: Whether to keep only the last word, for optimizers: their names contain paths.
    """
    owners = _Owners()
    return [owners.spelt(path_of(each), is_brief) for each in variables]


@dataclass(slots=True)
class _Owner:
    number: int
    leaves: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Owners:
    """Owners of variables, such as layers, numbered as they appear.

    A layer that repeats a variable's name is two owners.
    """

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
    """Return the variable's name with the names of its layers, or "" if it is not a variable."""
    if isinstance(variable, tf.Variable):
        return str(variable.name).partition(":")[0]
    return str(getattr(variable, "path", ""))  # only a Keras variable has a path
