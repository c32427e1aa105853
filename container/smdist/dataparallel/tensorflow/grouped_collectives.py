# SPDX-License-Identifier: Apache-2.0
"""Collectives on several tensors at once, with Horovod's names; grouped_allreduce() is another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smdist.dataparallel.tensorflow import row_collectives
from smdist.dataparallel.tensorflow.collectives import check_rows, reduce_scatter
from smdist.dataparallel.tensorflow.compression import Compression
from smdist.dataparallel.tensorflow.op_library import without_autograph
from smdist.dataparallel.tensorflow.operation_names import named
from smdist.dataparallel.tensorflow.set_members import ProcessSet, members_of


@without_autograph
def grouped_allgather(
    tensors: Sequence[Any], name: str | None = None, process_set: ProcessSet | None = None
) -> list[Any]:
    """Gather each tensor from all ranks, joined along axis 0 in the order of ranks.

    The numbers of rows of all tensors travel in one message.

    Args:
        tensors: Tensors [rows, ...]; the numbers of rows may differ between ranks.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Returns:
        One tensor [sum of rows over all ranks, ...] for each.

    Raises:
        OptionError: A tensor is a scalar, which has no rows, or contains strings.
    """
    members = members_of(process_set, "grouped_allgather")
    with named(name, "smdist_grouped_allgather"):
        values = [check_rows(tensor, "grouped_allgather") for tensor in tensors]
        if members.size == 1 or not values:
            return values
        return row_collectives.gather(values, members)


@without_autograph
def grouped_reducescatter(
    tensors: Sequence[Any],
    op: Any = None,
    *,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: Any = Compression.none,
    device_dense: str = "",
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> list[Any]:
    """Reduce each tensor over all ranks, and return this rank's shares of the results' rows.

    Args:
        tensors: Tensors [rows, ...], each of equal shape on all ranks.
        op: Reduce operation; by default AVERAGE.
        prescale_factor: Factor that multiplies the tensors before the reduction.
        postscale_factor: Factor that multiplies the results.
        compression: Compression.none, .fp16 or .bf16.
        device_dense: Horovod's argument; must be empty.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Raises:
        OptionError: A tensor is a scalar, the op is unknown or Adasum, or a dtype cannot be
                reduced.
    """
    members_of(process_set, "grouped_reducescatter")
    with named(name, "smdist_grouped_reducescatter"):
        return [
            reduce_scatter(
                tensor,
                op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
                compression=compression,
                device_dense=device_dense,
                process_set=process_set,
            )
            for tensor in tensors
        ]
