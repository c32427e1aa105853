# SPDX-License-Identifier: Apache-2.0
"""Collectives that divide tensors along dimension 0: allgather, alltoall and reducescatter.

Before each of them ranks exchange a few numbers: the shapes, and how many rows each rank has.
Functions with "async" return after that exchange, so they wait until all ranks have called them,
unless they have a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.torch.horovod import handles
from smdist.dataparallel.torch.horovod.allreduce_calls import Scaling, gradient_name
from smdist.dataparallel.torch.horovod.allreduce_calls import start as start_allreduce
from smdist.dataparallel.torch.horovod.communicator import Communicator, Started
from smdist.dataparallel.torch.horovod.compressors import Compression
from smdist.dataparallel.torch.horovod.flat_buffers import check_tensors, shown
from smdist.dataparallel.torch.horovod.handles import synchronize
from smdist.dataparallel.torch.horovod.named_operations import Finish
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)
from smdist.dataparallel.torch.horovod.reductions import (
    LINEAR,
    Average,
    HorovodOp,
    Sum,
    as_reduction,
    divided,
    is_fraction,
    scaled,
)
from smdist.dataparallel.torch.horovod.row_splits import row_splits


def _signature(tensors: Sequence[torch.Tensor]) -> str:
    """Return the shapes without dimension 0, and the dtypes: equal on all ranks."""
    return " ".join(f"{tuple(each.shape[1:])}{each.dtype}" for each in tensors)


def _row(tensor: torch.Tensor) -> int:
    """Return the number of elements of a row."""
    return tensor[:0].numel() if tensor.dim() == 0 else tensor.shape[1:].numel()


def _check_rows(tensors: Sequence[torch.Tensor], function: str) -> None:
    check_tensors(tensors, function)
    require(
        all(each.dim() > 0 for each in tensors),
        what=f"{function}() was called with a tensor without dimensions",
        why="it divides or joins tensors along dimension 0",
        hint="Pass tensor.reshape(1)",
        about="tensor",
        kind="scalar",
    )


# allgather -------------------------------------------------------------------------------------


def _counts(
    communicator: Communicator, tensors: Sequence[torch.Tensor], name: str | None
) -> list[list[int]]:
    """Return for each tensor the number of rows of each rank."""
    signature, rows_here = _signature(tensors), tensors[0].shape[0]
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
    return communicator.send_all(tensor, [each * _row(tensor) for each in rows])


def _start_gather(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    finish: Callable[[list[torch.Tensor]], Any],
    take_counts: Callable[[list[list[int]]], None] = lambda _: None,
) -> int:
    _check_rows(tensors, "allgather")

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

        return tuple(synchronize(_start_gather(tensors, name, process_set, list, take_counts)))

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
    return _start_gather([tensor], name, process_set, lambda results: results[0])


@after_init
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start grouped_allgather() without a gradient, and return its handle."""
    return _start_gather(tensors, name, process_set, list)


# alltoall --------------------------------------------------------------------------------------


def _start_exchange(
    tensor: torch.Tensor,
    sent: list[int],
    name: str | None,
    process_set: ProcessSet,
    finish: Callable[[torch.Tensor, list[int]], Any],
) -> int:
    def begin(communicator: Communicator) -> tuple[list[Started], Finish]:
        communicator.header("alltoall", _signature([tensor]), name=name, shown=shown([tensor]))
        ones = [1] * communicator.size
        received = communicator.wait(communicator.exchange(torch.tensor(sent), ones, ones)).tolist()
        row = _row(tensor)
        started = communicator.exchange(
            tensor[: sum(sent)], [each * row for each in sent], [each * row for each in received]
        )

        def collect(buffers: list[torch.Tensor]) -> Any:
            return finish(buffers[0].view(sum(received), *tensor.shape[1:]), received)

        return [started], collect

    return handles.start("alltoall", name, process_set, [tensor], begin)


def _with_splits(result: torch.Tensor, received: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    return result, torch.tensor(received, dtype=torch.int32)


class _ExchangeFunction(torch.autograd.Function):
    """All-to-all with a gradient: the all-to-all that sends gradients back."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, sent: list[int], name: str | None, process_set: ProcessSet
    ) -> Any:
        """Return the received rows, and how many came from each rank."""
        result, received = synchronize(
            _start_exchange(tensor, sent, name, process_set, _with_splits)
        )
        ctx.received, ctx.process_set = received.tolist(), process_set
        ctx.name = gradient_name(name)
        ctx.unsent = tensor.shape[0] - sum(sent)
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        """Return the gradients of this rank's rows; rows that were not sent get zeros."""
        back, _ = synchronize(
            _start_exchange(gradient, ctx.received, ctx.name, ctx.process_set, _with_splits)
        )
        if ctx.unsent:
            back = torch.cat([back, back.new_zeros(ctx.unsent, *back.shape[1:])])
        return back, None, None, None


@after_init
def alltoall(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send rows of the tensor to each rank, and return the received rows; it has a gradient.

    Args:
        tensor: Rows for rank 0, then rows for rank 1, and so on.
        splits: Number of rows for each rank, of int32 or int64; None for equal parts.
        name: Name that no other operation has at the same time.
        process_set: The ranks that take part.

    Returns:
        The received rows; with `splits` a tuple of them and the number of rows from each rank.

    Raises:
        OptionError: An argument is wrong.
        HorovodMismatchError: Ranks have different dtypes or shapes of rows; the next call works.
        HorovodInternalError: A rank was lost.
    """
    _check_rows([tensor], "alltoall")
    sent = row_splits(tensor, splits, process_set.size())
    result, received = _ExchangeFunction.apply(  # type: ignore[no-untyped-call]
        tensor, sent, name, process_set
    )
    return result if splits is None else (result, received)


@after_init
def alltoall_async(
    tensor: torch.Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start alltoall() without a gradient, and return its handle."""
    _check_rows([tensor], "alltoall")
    sent = row_splits(tensor, splits, process_set.size())
    has_splits = splits is not None

    def finish(result: torch.Tensor, received: list[int]) -> Any:
        return _with_splits(result, received) if has_splits else result

    return _start_exchange(tensor, sent, name, process_set, finish)


# reducescatter ---------------------------------------------------------------------------------


def _shares(rows: int, size: int) -> list[int]:
    """Return the rows of the result of each rank: the first ranks have one more, if needed."""
    return [rows // size + (rank < rows % size) for rank in range(size)]


def _start_scatter(
    tensors: Sequence[torch.Tensor],
    scaling: Scaling,
    name: str | None,
    finish: Callable[[list[torch.Tensor]], Any],
) -> int:
    """Start a reduce-scatter: an all-to-all of shares, which each rank adds in rank order."""
    _check_rows(tensors, "reducescatter")
    rows = [each.shape[0] for each in tensors]
    signature = f"{rows} {_signature(tensors)} {scaling.reduction.value}"
    detail = scaling.reduction.value

    def begin(communicator: Communicator) -> tuple[list[Started], Finish]:
        size, mine = communicator.size, communicator.rank
        text = f"{shown(tensors)}, {detail}"
        communicator.header("reducescatter", signature, name=name, shown=text)
        started, shapes = [], []
        for tensor in tensors:
            shares = _shares(tensor.shape[0], size)
            row = _row(tensor)
            sent = [share * row for share in shares]
            before = scaled(tensor.detach(), scaling.before)
            started.append(communicator.exchange(before, sent, [sent[mine]] * size))
            shapes.append((size, shares[mine], *tensor.shape[1:]))

        def collect(buffers: list[torch.Tensor]) -> Any:
            parts = zip(buffers, shapes, strict=True)
            return finish([_summed(each.view(shape), scaling) for each, shape in parts])

        return started, collect

    return handles.start("reducescatter", name, scaling.process_set, tensors, begin, detail)


def _summed(rows: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """Return the sum or average over dimension 0, added in order and rounded once."""
    dtype = rows.dtype
    wide = rows.float() if dtype in (torch.float16, torch.bfloat16) else rows
    total = wide[0].clone()
    for row in wide[1:]:
        total += row
    if scaling.reduction is Average:
        total = total / len(rows) if is_fraction(dtype) else divided(total, len(rows))
    return scaled(total.to(dtype), scaling.after)


class _ScatterFunction(torch.autograd.Function):
    """Reduce-scatter with Horovod's gradient.

    It is the all-gather of the gradients. For op=Sum, Horovod multiplies it by the number of
    ranks.
    """

    @staticmethod
    def forward(ctx: Any, scaling: Scaling, name: str | None, *tensors: torch.Tensor) -> Any:
        """Return this rank's rows of the reduced tensors."""
        ctx.scaling, ctx.name = scaling, gradient_name(name)
        return tuple(synchronize(_start_scatter(tensors, scaling, name, list)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the gradients of all rows."""
        scaling: Scaling = ctx.scaling
        factor = scaling.before * scaling.after
        if scaling.reduction is Sum:
            factor *= scaling.process_set.size()
        whole = synchronize(_start_gather(gradients, ctx.name, scaling.process_set, list))
        return (None, None, *(scaled(each, factor) for each in whole))


def _scatter_scaling(op: Any, before: float, after: float, process_set: ProcessSet) -> Scaling:
    reduction: HorovodOp = as_reduction(op)
    if reduction not in LINEAR:
        raise OptionError(
            f"reducescatter was called with op={reduction.value!r}",
            "it reduces only with Sum and Average, as in Horovod",
            "Use allreduce() and take this rank's rows",
            about="op",
        )
    return Scaling(reduction, float(before), float(after), process_set)


@after_init
def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Return this rank's rows of the reduced tensor; it has a gradient.

    Args:
        tensor: The tensor, of the same shape and dtype on all ranks. If rows cannot be divided
            equally, the first ranks get one row more.
        name: Name that no other operation has at the same time.
        compression: `Compression.none`, `.fp16` or `.bf16` for the way.
        op: Average or Sum.
        process_set: The ranks that take part.
        prescale_factor: Factor of the tensor before it is reduced.
        postscale_factor: Factor of the result.

    Raises:
        OptionError: An argument is wrong.
        HorovodMismatchError: Ranks called different things; the next call works.
        HorovodInternalError: A rank was lost.
    """
    return grouped_reducescatter(
        [tensor], name, compression, op, process_set, prescale_factor, postscale_factor
    )[0]


@after_init
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """Return this rank's rows of several reduced tensors; see reducescatter()."""
    scaling = _scatter_scaling(op, prescale_factor, postscale_factor, process_set)
    check_tensors(tensors, "reducescatter")
    small, contexts = zip(*map(compression.compress, tensors), strict=True)
    results = _ScatterFunction.apply(scaling, name, *small)  # type: ignore[no-untyped-call]
    return [compression.decompress(*pair) for pair in zip(results, contexts, strict=True)]


@after_init
def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start reducescatter() without a gradient, and return its handle."""
    scaling = _scatter_scaling(op, prescale_factor, postscale_factor, process_set)
    return _start_scatter([tensor], scaling, name, lambda results: results[0])


@after_init
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start grouped_reducescatter() without a gradient, and return its handle."""
    scaling = _scatter_scaling(op, prescale_factor, postscale_factor, process_set)
    return _start_scatter(tensors, scaling, name, list)
