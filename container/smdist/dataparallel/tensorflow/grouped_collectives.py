# SPDX-License-Identifier: Apache-2.0
"""Collectives on several tensors at once, with Horovod's names; grouped_allreduce() is another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smdist.dataparallel.tensorflow import basics, row_collectives
from smdist.dataparallel.tensorflow.collectives import check_rows, reduce_scatter
from smdist.dataparallel.tensorflow.op_library import tf, without_autograph


@without_autograph
def grouped_allgather(tensors: Sequence[Any], name: str | None = None) -> list[Any]:
    """Gather each tensor from all ranks, joined along axis 0 in the order of ranks.

    The numbers of rows of all tensors travel in one message.

    Args:
        tensors: Tensors [rows, ...]; the numbers of rows may differ between ranks.
        name: Name in the graph.

    Returns:
        One tensor [sum of rows over all ranks, ...] for each.

    Raises:
        OptionError: A tensor is a scalar, which has no rows, or contains strings.
    """
    with tf.name_scope(name or "smdist_grouped_allgather"):
        values = [check_rows(tensor, "grouped_allgather") for tensor in tensors]
        if basics.size() == 1 or not values:
            return values
        return row_collectives.gather(values)


@without_autograph
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: Any = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
) -> list[Any]:
    """Reduce each tensor over all ranks, and return this rank's shares of the results' rows.

    Args:
        tensors: Tensors [rows, ...], each of equal shape on all ranks.
        op: Reduce operation; by default AVERAGE, which needs floats.
        prescale_factor: Factor that multiplies the tensors before the reduction.
        postscale_factor: Factor that multiplies the results.
        name: Name in the graph.

    Raises:
        OptionError: A tensor is a scalar, the op is unknown, or integers are averaged or
            multiplied by a factor.
        tf.errors.InvalidArgumentError: The number of ranks does not divide the number of rows.
    """
    with tf.name_scope(name or "smdist_grouped_reducescatter"):
        return [
            reduce_scatter(
                tensor, op, prescale_factor=prescale_factor, postscale_factor=postscale_factor
            )
            for tensor in tensors
        ]
