# SPDX-License-Identifier: Apache-2.0
"""All-reduce of sparse tensors, as embeddings with sparse=True have for gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from sagemaker_dist.errors import require
from smdist.dataparallel.torch.horovod import handles
from smdist.dataparallel.torch.horovod.allgather_calls import grouped_allgather_async
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)
from smdist.dataparallel.torch.horovod.reductions import LINEAR, Average, as_reduction


@after_init
def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: Any, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Start the reduction of a sparse tensor, and return a function that waits for the result.

    The indices and values of all ranks are gathered. The function may be called once and returns
    the sparse tensor of all of them; rows of the same index are added when it is coalesced.

    Args:
        tensor: A sparse tensor in torch's coordinate format, of the same dense shape on all ranks.
        name: Name that no other operation has at the same time.
        op: Average or Sum; None for Average.
        process_set: The ranks that take part.

    Raises:
        OptionError: The tensor is not sparse, or `op` is neither Average nor Sum.
        HorovodMismatchError: Ranks called different things; the next call works.
        HorovodInternalError: A rank was lost.
    """
    require(
        isinstance(tensor, torch.Tensor) and tensor.layout is torch.sparse_coo,
        what="sparse_allreduce_async() was called with a tensor that is not sparse",
        why="it takes sparse tensors in torch's coordinate format",
        hint="Use allreduce_async()",
        about="tensor",
    )
    reduction = as_reduction(op)
    require(
        reduction in LINEAR,
        what=f"a sparse tensor is reduced with op={reduction.value!r}",
        why="its rows are gathered from all ranks, and rows of one index are then added",
        hint="Pass op=Average or op=Sum, or a dense tensor",
        about="op",
    )
    own = tensor.detach().coalesce()
    divisor = process_set.size() if reduction is Average else 1

    def joined(results: list[torch.Tensor]) -> torch.Tensor:
        indices, values = results[0].t(), results[1]
        return torch.sparse_coo_tensor(indices, values / divisor, own.shape, check_invariants=False)

    rows = own.indices().t().contiguous()
    handle = grouped_allgather_async([rows, own.values()], name, process_set)
    return partial(handles.synchronize, handles.then(handle, joined))
