# SPDX-License-Identifier: Apache-2.0
"""All-reduces with the names and arguments of Horovod.

Each call copies its tensors into one flat buffer for each dtype, which travels as one operation.
Names with a trailing underscore write the result into the tensor itself, and those with "async"
return a handle for synchronize().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from smdist.dataparallel.torch.horovod import handles
from smdist.dataparallel.torch.horovod.adaptive_sum import check_world, combined
from smdist.dataparallel.torch.horovod.communicator import Communicator, Started
from smdist.dataparallel.torch.horovod.compressors import Compression
from smdist.dataparallel.torch.horovod.flat_buffers import (
    by_kind,
    check_tensors,
    packed,
    unpacked,
)
from smdist.dataparallel.torch.horovod.handles import synchronize
from smdist.dataparallel.torch.horovod.named_operations import Finish
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)
from smdist.dataparallel.torch.horovod.reductions import (
    Adasum,
    Average,
    HorovodOp,
    as_reduction,
    divided,
    engine_op,
    is_fraction,
    scaled,
)

Combine = Callable[[torch.Tensor], list[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Scaling:
    """Reduce operation of an all-reduce, and factors around it.

    Attributes:
        reduction: The reduce operation.
        before: Factor of each tensor before it is reduced.
        after: Factor of the result.
        process_set: The ranks that take part.
    """

    reduction: HorovodOp
    before: float
    after: float
    process_set: ProcessSet


def start(
    tensors: Sequence[torch.Tensor], scaling: Scaling, finish: Finish,
    name: str | None = None, function: str = "allreduce", *, shown: str | None = None,
) -> int:  # fmt: skip
    """Start one all-reduce of several tensors and return its handle.

    Args:
        tensors: The tensors, which must not be changed before the handle is synchronized.
        scaling: The reduce operation and its factors.
        finish: Function from the reduced tensors to the result of synchronize().
        name: Name that no other operation has until the handle is synchronized.
        function: Name of the caller, for errors.
        shown: Name in timelines of an operation without a name.

    Raises:
        OptionError: An argument is wrong.
    """
    check_tensors(tensors, function)
    process_set = scaling.process_set
    if scaling.reduction is Adasum:
        check_world(process_set.size())
    groups = by_kind(tensors)
    packs = [[tensors[each] for each in positions] for positions in groups]
    buffers = [scaled(packed(members), scaling.before) for members in packs]

    def begin(communicator: Communicator) -> tuple[list[Started], Finish]:
        begun = [
            _start(members, buffer, scaling, communicator, name, shown)
            for members, buffer in zip(packs, buffers, strict=True)
        ]

        def collect(reduced: list[torch.Tensor]) -> Any:
            results: list[Any] = [None] * len(tensors)
            for positions, (_, combine), buffer in zip(groups, begun, reduced, strict=True):
                for position, result in zip(positions, combine(buffer), strict=True):
                    results[position] = result
            return finish(results)

        return [started for started, _ in begun], collect

    return handles.start(function, name, process_set, tensors, begin, scaling.reduction.value)


def _start(
    tensors: list[torch.Tensor], buffer: torch.Tensor, scaling: Scaling, communicator: Communicator,
    name: str | None, shown: str | None,
) -> tuple[Started, Combine]:  # fmt: skip
    """Start the all-reduce of tensors of one dtype; return it and what makes results of it.

    Args:
        tensors: The tensors.
        buffer: Their elements, with the factor before the reduction; it may be changed.
        scaling: The reduce operation and its factors.
        communicator: Where it runs.
        name: Name of the operation; None if it has none.
        shown: Name in timelines of an operation without a name.
    """
    if scaling.reduction is Adasum:
        return _start_adasum(tensors, buffer, communicator, scaling, name)
    dtype, size = tensors[0].dtype, communicator.size
    shapes = [tuple(each.shape) for each in tensors]
    started = communicator.reduce(buffer, engine_op(scaling.reduction, dtype), shapes, name, shown)

    def combine(reduced: torch.Tensor) -> list[torch.Tensor]:
        if scaling.reduction is Average and not is_fraction(dtype):
            reduced = divided(reduced, size)
        return unpacked(scaled(reduced, scaling.after), tensors)

    return started, combine


def _start_adasum(
    tensors: list[torch.Tensor], buffer: torch.Tensor, communicator: Communicator, scaling: Scaling,
    name: str | None,
) -> tuple[Started, Combine]:  # fmt: skip
    signature = f"{[tuple(each.shape) for each in tensors]} {buffer.dtype}"
    communicator.header("adasum", signature, name=name)
    started = communicator.gather(buffer)

    def combine(every: torch.Tensor) -> list[torch.Tensor]:
        rows = [unpacked(row, tensors) for row in every.view(communicator.size, -1)]
        sums = [
            combined([row[position].reshape(-1) for row in rows]).view(tensor.shape)
            for position, tensor in enumerate(tensors)
        ]
        return [scaled(each, scaling.after) for each in sums]

    return started, combine


def _scaling(
    average: bool | None, op: Any, before: float, after: float, process_set: ProcessSet
) -> Scaling:
    return Scaling(as_reduction(op, average), float(before), float(after), process_set)


def _first(results: list[torch.Tensor]) -> torch.Tensor:
    return results[0]


def _written(
    tensors: Sequence[torch.Tensor], results: list[torch.Tensor]
) -> Sequence[torch.Tensor]:
    with torch.no_grad():
        for tensor, result in zip(tensors, results, strict=True):
            tensor.copy_(result)
    return tensors


def gradient_name(name: str | None) -> str | None:
    """Return the name of the collective of gradients: they come in another order, too."""
    return None if name is None else f"{name}/gradient"


class _ReduceFunction(torch.autograd.Function):
    """All-reduce with a gradient: the all-reduce of the gradients with the same operation."""

    @staticmethod
    def forward(ctx: Any, scaling: Scaling, name: str | None, *tensors: torch.Tensor) -> Any:
        """Return the reduced tensors."""
        ctx.scaling, ctx.name = scaling, gradient_name(name)
        return tuple(synchronize(start(tensors, scaling, list, name)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Return the reduced gradients."""
        return (None, None, *synchronize(start(gradients, ctx.scaling, list, ctx.name)))


@after_init
def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the tensor reduced over all ranks; it has a gradient.

    Args:
        tensor: The tensor, of the same shape and dtype on all ranks.
        average: Deprecated: True for op=Average, False for op=Sum.
        name: Name that no other operation has at the same time.
        compression: `Compression.none`, `.fp16` or `.bf16` for the way.
        op: Average (the default), Sum, Adasum, Min, Max or Product. The average of integers is
            rounded towards zero.
        prescale_factor: Factor of the tensor before it is reduced.
        postscale_factor: Factor of the result.
        process_set: The ranks that take part.

    Raises:
        OptionError: An argument is wrong.
        HorovodMismatchError: Ranks called different things; the next call works.
        HorovodInternalError: A rank was lost.
    """
    scaling = _scaling(average, op, prescale_factor, postscale_factor, process_set)
    return _reduced([tensor], scaling, name, compression)[0]


@after_init
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """Return several tensors reduced by one operation for each dtype; see allreduce()."""
    scaling = _scaling(average, op, prescale_factor, postscale_factor, process_set)
    return _reduced(tensors, scaling, name, compression)


def _reduced(
    tensors: Sequence[torch.Tensor], scaling: Scaling, name: str | None, compression: Any
) -> list[torch.Tensor]:
    check_tensors(tensors, "allreduce")
    small, contexts = zip(*map(compression.compress, tensors), strict=True)
    results = _ReduceFunction.apply(scaling, name, *small)  # type: ignore[no-untyped-call]
    return [compression.decompress(*pair) for pair in zip(results, contexts, strict=True)]


@after_init
def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start allreduce() without a gradient; synchronize() of the handle returns a new tensor."""
    scaling = _scaling(average, op, prescale_factor, postscale_factor, process_set)
    return start([tensor], scaling, _first, name)


@after_init
def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce the tensor in place and return it; see allreduce()."""
    scaling = _scaling(average, op, prescale_factor, postscale_factor, process_set)
    return _in_place([tensor], scaling, name)[0]


@after_init
def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start allreduce_(); synchronize() of the handle writes the result into the tensor."""
    scaling = _scaling(average, op, prescale_factor, postscale_factor, process_set)
    return start([tensor], scaling, lambda results: _written([tensor], results)[0], name)


@after_init
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start grouped_allreduce() without a gradient; synchronize() returns new tensors."""
    scaling = _scaling(average, op, prescale_factor, postscale_factor, process_set)
    return start(tensors, scaling, list, name)


@after_init
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Sequence[torch.Tensor]:
    """Reduce several tensors in place and return them; see grouped_allreduce()."""
    scaling = _scaling(average, op, prescale_factor, postscale_factor, process_set)
    return _in_place(tensors, scaling, name)


@after_init
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start grouped_allreduce_(); synchronize() writes the results into the tensors."""
    scaling = _scaling(average, op, prescale_factor, postscale_factor, process_set)
    return start(tensors, scaling, partial(_written, tensors), name)


def _in_place(
    tensors: Sequence[torch.Tensor], scaling: Scaling, name: str | None
) -> Sequence[torch.Tensor]:
    result: Sequence[torch.Tensor] = synchronize(
        start(tensors, scaling, partial(_written, tensors), name)
    )
    return result
