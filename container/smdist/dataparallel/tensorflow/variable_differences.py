# SPDX-License-Identifier: Apache-2.0
"""Differences between the variables of ranks, in one sentence, found after a hash has differed.

rank 2: variable dense/kernel is float32 [8, 17], on rank 0 float32 [8, 16]
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
from smdist.dataparallel.tensorflow.variable_signature import path_of

_END: Final = "\n"  # separates the descriptions of ranks; JSON contains none
Description = list[tuple[str, str, str]]


def describe(given: Sequence[Any], variables: Sequence[Any], names: Sequence[str]) -> Description:
    """Return the path, the dtype and shape, and the compared name of each variable.

    Args:
        given: Variables of TensorFlow or Keras; a number replaces the path of an unnamed one.
        variables: The tf.Variables inside them.
        names: The result of variable_signature.names_of().
    """
    kinds = (f"{each.dtype.name} {each.shape.as_list()}" for each in variables)
    paths = (
        path_of(each) if name else f"number {number}"
        for number, (each, name) in enumerate(zip(given, names, strict=True))
    )
    return list(zip(paths, kinds, names, strict=True))


def difference_between_ranks(mine: Description) -> str:
    """Gather the descriptions of all ranks and describe the first difference; eager, collective."""
    packed = f"{json.dumps(mine)}{_END}".encode()
    [everything] = row_collectives.gather([tf.constant(np.frombuffer(packed, np.uint8))])
    lines = everything.numpy().tobytes().decode().removesuffix(_END).split(_END)
    return difference([[(path, kind, name) for path, kind, name in json.loads(x)] for x in lines])


def difference(ranks: Sequence[Description]) -> str:
    """Describe the deviating rank, its first different variable, and the value on most ranks.

    Args:
        ranks: Descriptions in the order of ranks; they are not all the same.
    """
    compared = [tuple((kind, name) for _, kind, name in each) for each in ranks]
    [(common, _)] = Counter(compared).most_common(1)  # in a tie, the description of the lowest rank
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
        return f"rank {odd} has a variable {own[0]}, {own[1]}, which rank {usual} has not"
    if own[2] == other[2]:
        return f"rank {odd}: variable {own[0]} is {own[1]}, on rank {usual} {other[1]}"
    return (
        f"rank {odd}: variable {own[0]}, {own[1]}, stands where rank {usual} has "
        f"{other[0]}, {other[1]}"
    )
