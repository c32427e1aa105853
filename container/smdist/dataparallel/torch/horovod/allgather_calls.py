# SPDX-License-Identifier: Apache-2.0
"""All-gathers, which join tensors along dimension 0, with the names and arguments of Horovod.

Before an all-gather ranks exchange a few numbers: the shapes, and how many rows each rank has.
Functions with "async" return after that exchange, so they wait until all ranks have called them,
unless they have a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smdist.dataparallel.torch.horovod import handles
from smdist.dataparallel.torch.horovod.allreduce_calls import Scaling, gradient_name
from smdist.dataparallel.torch.horovod.allreduce_calls import start as start_allreduce
from smdist.dataparallel.torch.horovod.communicator import Communicator, Started
from smdist.dataparallel.torch.horovod.flat_buffers import (
    check_rows,
    row_elements,
    row_signature,
    shown,
)
from smdist.dataparallel.torch.horovod.handles import synchronize
from smdist.dataparallel.torch.horovod.named_operations import Finish
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)
from smdist.dataparallel.torch.horovod.reductions import Average, HorovodOp, Sum


def _counts(
    communicator: Communicator, tensors: Sequence[torch.Tensor], name: str | None
) -> list[list[int]]:
    """Return for each tensor the number of rows of each rank."""
    signature, rows_here = row_signature(tensors), tensors[0].shape[0]
    first = communicator.header("allgather", signature, rows_here, name=name, shown=shown(tensors))
    if len(tensors) == 1:
        return [first]
    mine = torch.tensor([each.shape[0] for each in tensors])
    every = communicator.wait(communicator.gather(mine)).view(communicator.size, -1)
    rows: list[list[int]] = every.t().tolist()
    return rows


def _gather(communicator: Communicator, tensor: torch.Tensor, rows: list[int]) -> Started:
    if len(set(rows)) == 1:
        return communicator.gather(tensor)
    return communicator.send_all(tensor, [each * row_elements(tensor) for each in rows])


def start_gather(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    finish: Callable[[list[torch.Tensor]], Any],
    take_counts: Callable[[list[list[int]]], None] = lambda _: None,
) -> int:
    """Start one all-gather of several tensors and return its handle.

    Args:
        tensors: This rank's rows.
        name: Name that no other operation has until the handle is synchronized.
        process_set: The ranks that take part.
        finish: Function from the joined tensors to the result of synchronize().
        take_counts: Function that is called with the number of rows of each rank, for each tensor.

    Raises:
        OptionError: An argument is wrong.
        HorovodMismatchError: Ranks have different dtypes or shapes of rows.
    """
    check_rows(tensors, "allgather")

    def begin(communicator: Communicator) -> tuple[list[Started], Finish]:
        counts = _counts(communicator, tensors, name)
        take_counts(counts)
        pairs = [*zip(tensors, counts, strict=True)]
        started = [_gather(communicator, tensor, rows) for tensor, rows in pairs]
        shapes = [(sum(rows), *each.shape[1:]) for each, rows in pairs]

        def collect(buffers: list[torch.Tensor]) -> Any:
            return finish([each.view(shape) for each, shape in zip(buffers, shapes, strict=True)])

        return started, collect

    return handles.start("allgather", name, process_set, tensors, begin)


class _GatherFunction(torch.autograd.Function):
    """All-gather with a gradient: that of this rank's rows, averaged or added over the ranks."""

    @staticmethod
    def forward(
        ctx: Any, process_set: ProcessSet, name: str | None, reduction: HorovodOp, *tensors: Any
    ) -> Any:
        """Return the rows of all ranks."""
        ctx.scaling, ctx.name = Scaling(reduction, 1.0, 1.0, process_set), gradient_name(name)

        def take_counts(counts: list[list[int]]) -> None:
            ctx.counts = counts

        return tuple(synchronize(start_gather(tensors, name, process_set, list, take_counts)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the reduced gradients of this rank's rows."""
        scaling: Scaling = ctx.scaling
        whole = synchronize(start_allreduce(gradients, scaling, list, ctx.name))
        mine = scaling.process_set.communicator().rank
        parts = [each.split(rows)[mine] for each, rows in zip(whole, ctx.counts, strict=True)]
        return (None, None, None, *parts)


def allgather_with_summed_gradient(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensors of all ranks; the gradient is that of the sum of all ranks' losses.

    Args:
        tensor: This rank's rows; ranks may have different numbers of them.

    Raises:
        HorovodMismatchError: Ranks have different dtypes or shapes of rows; the next call works.
        HorovodInternalError: A rank was lost.
    """
    gathered: torch.Tensor = _GatherFunction.apply(  # type: ignore[no-untyped-call]
        global_process_set, None, Sum, tensor
    )[0]
    return gathered


@after_init
def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Return the tensors of all ranks, joined along dimension 0; it has a gradient.

    The gradient is averaged over the ranks, as in Horovod.

    Args:
        tensor: This rank's rows; ranks may have different numbers of them.
        name: Name that no other operation has at the same time.
        process_set: The ranks that take part.

    Raises:
        OptionError: An argument is wrong.
        HorovodMismatchError: Ranks have different dtypes or shapes of rows; the next call works.
        HorovodInternalError: A rank was lost.
    """
    return grouped_allgather([tensor], name, process_set)[0]


@after_init
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Return several tensors of all ranks, each joined along dimension 0; see allgather()."""
    return [*_GatherFunction.apply(process_set, name, Average, *tensors)]  # type: ignore[no-untyped-call]


@after_init
def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start allgather() without a gradient, and return its handle."""
    return start_gather([tensor], name, process_set, lambda results: results[0])


@after_init
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start grouped_allgather() without a gradient, and return its handle."""
    return start_gather(tensors, name, process_set, list)
