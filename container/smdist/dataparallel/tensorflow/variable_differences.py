# SPDX-License-Identifier: Apache-2.0
"""Search for the first difference between the variables of different ranks.

Ranks compare hashes of their variables. If the hashes differ, this module finds the difference
and describes it in one sentence:

    the variable dense/kernel is float32 [8, 17] on rank 2 and float32 [8, 16] on rank 0
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from smdist.dataparallel.tensorflow import row_collectives
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.set_members import Members
from smdist.dataparallel.tensorflow.variable_signature import path_of

_END: Final = "\n"  # separates the descriptions of ranks; JSON contains none
Description = list[tuple[str, str, str]]  # (path, dtype and shape, compared name) of each variable


def describe(given: Sequence[Any], variables: Sequence[Any], names: Sequence[str]) -> Description:
    """Return (path, dtype and shape, compared name) of each variable.

    The path of a variable without a name is its index, such as "number 3".

    Args:
        given: Variables of TensorFlow or Keras.
        variables: The same variables as tf.Variable objects.
        names: Compared names of the same variables, from variable_signature.names_of().
    """
    kinds = (f"{each.dtype.name} {each.shape.as_list()}" for each in variables)
    paths = (
        path_of(each) if name else f"number {number}"
        for number, (each, name) in enumerate(zip(given, names, strict=True))
    )
    return list(zip(paths, kinds, names, strict=True))


def difference_between_ranks(mine: Description, members: Members) -> str:
    """Gather the descriptions of all ranks; return a sentence about their first difference.

    `mine` describes the variables of this rank; describe() has made it. All members must call this
    function, outside of a tf.function.
    """
    packed = f"{json.dumps(mine)}{_END}".encode()
    [everything] = row_collectives.gather([tf.constant(np.frombuffer(packed, np.uint8))], members)
    lines = everything.numpy().tobytes().decode().removesuffix(_END).split(_END)
    return difference([[(path, kind, name) for path, kind, name in json.loads(x)] for x in lines])


def difference(ranks: Sequence[Description]) -> str:
    """Return a sentence about the first difference between the variables of two ranks.

    One of them is a rank with the most frequent description, the other the first rank with another
    description.

    Args:
        ranks: The description of each rank's variables; at least two must be different.
    """
    compared = [tuple((kind, name) for _, kind, name in each) for each in ranks]
    [(common, _)] = Counter(compared).most_common(1)  # with a tie, that of the lowest rank
    usual = compared.index(common)
    odd = next(rank for rank, each in enumerate(compared) if each != common)
    pairs = zip_longest(ranks[odd], ranks[usual])
    own, other = next(pair for pair in pairs if not pair[0] or not pair[1] or _differ(*pair))
    return _sentence(odd, own, usual, other)


def _differ(own: tuple[str, str, str], other: tuple[str, str, str]) -> bool:
    return own[1:] != other[1:]


def _sentence(odd: int, own: Any, usual: int, other: Any) -> str:
    if own is None:
        return f"rank {odd} has no variable {other[0]}, which is {other[1]} on rank {usual}"
    if other is None:
        return f"rank {odd} has a variable {own[0]} ({own[1]}), which rank {usual} does not have"
    if own[2] == other[2]:
        return f"the variable {own[0]} is {own[1]} on rank {odd} and {other[1]} on rank {usual}"
    return (
        f"at the same position rank {odd} has the variable {own[0]} ({own[1]}) and rank {usual}"
        f" has {other[0]} ({other[1]})"
    )
