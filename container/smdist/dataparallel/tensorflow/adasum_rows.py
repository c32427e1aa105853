# SPDX-License-Identifier: Apache-2.0
"""Adasum: a sum that does not grow where gradients of ranks point into the same direction.

Two vectors a and b become (1 - ab / 2aa) a + (1 - ab / 2bb) b: their sum if they are orthogonal,
their average if they are equal. Ranks are combined in pairs, the pairs in pairs, and so on.
Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020.
"""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import require
from smdist.dataparallel.tensorflow.op_library import tf


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Return True if Adasum can combine this number of ranks: 1, 2, 4, 8 and so on."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_ranks(size: int) -> None:
    """Check that the number of ranks is a power of two.

    Raises:
        OptionError: It is not.
    """
    require(
        check_num_rank_power_of_2(size),
        what=f"op is Adasum with {size} ranks",
        why="ranks are combined in pairs, so their number must be a power of two",
        hint="Use 2, 4, 8, ... ranks, or op=Average",
        about="op",
    )


def combined(rows: Any) -> Any:
    """Return the adaptive sum of vectors of floats.

    Args:
        rows: One vector for each rank, [ranks, elements]; the number of ranks is known.

    Returns:
        A vector [elements] of the same dtype, computed in float64 or float32.
    """
    dtype = tf.float64 if rows.dtype == tf.float64 else tf.float32
    level = tf.unstack(tf.cast(rows, dtype), axis=0)
    while len(level) > 1:
        level = [_pair(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return tf.cast(level[0], rows.dtype)


def _pair(a: Any, b: Any) -> Any:
    dot, aa, bb = (tf.reduce_sum(x * y) for x, y in ((a, b), (a, a), (b, b)))
    of_a = 1 - tf.math.divide_no_nan(dot, 2 * aa)
    of_b = 1 - tf.math.divide_no_nan(dot, 2 * bb)
    return of_a * a + of_b * b
