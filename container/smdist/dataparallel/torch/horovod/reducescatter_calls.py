# SPDX-License-Identifier: Apache-2.0
"""Reduce-scatters along dimension 0, with the names and arguments of Horovod.

Before a reduce-scatter ranks compare their shapes. Functions with "async" return after that
exchange, so they wait until all ranks have called them, unless they have a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.torch.horovod import handles
from smdist.dataparallel.torch.horovod.allgather_calls import start_gather
from smdist.dataparallel.torch.horovod.allreduce_calls import Scaling, gradient_name
from smdist.dataparallel.torch.horovod.communicator import Communicator, Started
from smdist.dataparallel.torch.horovod.compressors import Compression
from smdist.dataparallel.torch.horovod.flat_buffers import (
    check_rows,
    check_tensors,
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
    check_rows(tensors, "reducescatter")
    rows = [each.shape[0] for each in tensors]
    signature = f"{rows} {row_signature(tensors)} {scaling.reduction.value}"
    detail = scaling.reduction.value

    def begin(communicator: Communicator) -> tuple[list[Started], Finish]:
        size, mine = communicator.size, communicator.rank
        text = f"{shown(tensors)}, {detail}"
        communicator.header("reducescatter", signature, name=name, shown=text)
        started, shapes = [], []
        for tensor in tensors:
            shares = _shares(tensor.shape[0], size)
            row = row_elements(tensor)
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
        whole = synchronize(start_gather(gradients, ctx.name, scaling.process_set, list))
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
