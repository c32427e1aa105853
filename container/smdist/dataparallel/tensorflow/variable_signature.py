# SPDX-License-Identifier: Apache-2.0
"""Names of variables in a form that ranks can compare, in addition to shapes.

Keras counts layers over the whole process, and a loaded model has shorter paths than a built
one, so equal models may have different names. The compared name has only the last two parts of
the path, without Keras's numbers, and numbers the layers of each kind from 0:

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


def checksum_of(text: str) -> int:
    """Return a hash of the text for all_reduce()'s `checksum`, at least 1 and below 2**31."""
    return crc32(text.encode()) >> 1 or 1


def names_of(variables: Iterable[Any], is_brief: bool = False) -> list[str]:
    """Return the name of each variable in a form that ranks can compare.

    The name does not depend on models that were built before: for the paths
    "sequential_1/dense_7/kernel" and "sequential/dense/kernel" it is "dense 0 kernel".

    Args:
        variables: Variables of TensorFlow or Keras. The name of any other object, and of
            an unnamed variable, is "".
        is_brief: True to shorten the last part of each path to the word after its last underscore:
            "dense_kernel_momentum" becomes "momentum".
    """
    owners = _Owners()
    return [owners.compared_name(path_of(each), is_brief) for each in variables]


@dataclass(slots=True)
class _Owner:
    number: int
    variables: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Owners:
    """Layers and other owners of variables, numbered from 0 for each kind of owner.

    An owner has the path of its variables without the last part. All variables of an owner have
    different names. A second variable of the same name belongs to a new owner.

    Attributes:
        latest: Latest owner of each path.
        counts: Number of owners of each kind, such as "dense".
    """

    latest: dict[str, _Owner] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def compared_name(self, path: str, is_brief: bool) -> str:
        prefix, _, last = path.rpartition("/")
        variable = _NUMBER.sub("", last)
        if variable in _UNNAMED:
            return ""
        variable = variable.rpartition("_")[-1] if is_brief else variable
        kind = _NUMBER.sub("", prefix.rpartition("/")[-1])
        return f"{kind} {self._number(prefix, kind, variable)} {variable}"

    def _number(self, prefix: str, kind: str, variable: str) -> int:
        owner = self.latest.get(prefix)
        if owner is None or variable in owner.variables:
            owner = self.latest[prefix] = _Owner(self.counts.get(kind, 0))
            self.counts[kind] = owner.number + 1
        owner.variables.add(variable)
        return owner.number


def path_of(variable: Any) -> str:
    """Return the path of a variable, with the names of its layers, or "" for another object."""
    if isinstance(variable, tf.Variable):
        return str(variable.name).partition(":")[0]
    return str(getattr(variable, "path", ""))  # only a Keras variable has a path
