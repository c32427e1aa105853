# SPDX-License-Identifier: Apache-2.0
"""Broadcasts, barriers and join() with the names and arguments of Horovod.

Before a broadcast ranks exchange a checksum of the shapes and the root. Functions with "async"
return after that exchange, so they wait until all ranks have called them, unless they have a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.torch.horovod import handles
from smdist.dataparallel.torch.horovod.allreduce_calls import Scaling, gradient_name
from smdist.dataparallel.torch.horovod.allreduce_calls import start as start_allreduce
from smdist.dataparallel.torch.horovod.communicator import Communicator, Started
from smdist.dataparallel.torch.horovod.flat_buffers import (
    by_kind,
    check_tensors,
    packed,
    shown,
    unpacked,
)
from smdist.dataparallel.torch.horovod.handles import synchronize
from smdist.dataparallel.torch.horovod.named_operations import Finish
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)
from smdist.dataparallel.torch.horovod.reductions import Average


def root_in(process_set: ProcessSet, root_rank: Any) -> int:
    """Return the number in the process set of a rank of the job.

    Raises:
        OptionError: `root_rank` is no rank of the set.
    """
    communicator = process_set.communicator()
    if root_rank not in communicator.ranks:
        raise OptionError(
            f"root_rank is {root_rank!r}",
            f"the process set has the ranks {list(communicator.ranks)}",
            "Pass one of them: a number among all ranks of the job",
            about="root_rank",
        )
    return int(communicator.ranks.index(root_rank))


def start_broadcast(
    tensors: Sequence[torch.Tensor],
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    is_in_place: bool,
) -> int:
    """Start a broadcast of several tensors, as one operation for each dtype; return its handle.

    Args:
        tensors: The tensors, of the same shapes and dtypes on all ranks.
        root_rank: The rank of the job that sends.
        name: Name that no other operation has until the handle is synchronized.
        process_set: The ranks that take part.
        is_in_place: True writes the result into the tensors.
    """
    check_tensors(tensors, "broadcast")
    root = root_in(process_set, root_rank)
    shapes = " ".join(f"{tuple(each.shape)}{each.dtype}" for each in tensors)
    groups = by_kind(tensors)
    packs = [[tensors[each] for each in positions] for positions in groups]

    def begin(communicator: Communicator) -> tuple[list[Started], Finish]:
        text = f"{shown(tensors)}, root {root_rank}"
        communicator.header("broadcast", f"root {root} {shapes}", name=name, shown=text)
        return [communicator.broadcast(packed(members), root) for members in packs], collect

    def collect(buffers: list[torch.Tensor]) -> Any:
        results = list(tensors)
        for positions, members, buffer in zip(groups, packs, buffers, strict=True):
            for position, part in zip(positions, unpacked(buffer, members), strict=True):
                results[position] = part
        if not is_in_place:
            return results
        with torch.no_grad():
            for tensor, result in zip(tensors, results, strict=True):
                tensor.copy_(result)
        return list(tensors)

    return handles.start("broadcast", name, process_set, tensors, begin, f"root {root_rank}")


class _BroadcastFunction(torch.autograd.Function):
    """Broadcast with Horovod's gradient: on the root the average of all ranks', elsewhere zeros."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Any:
        """Return the tensor of the root."""
        ctx.root, ctx.process_set = root_in(process_set, root_rank), process_set
        ctx.name = gradient_name(name)
        handle = start_broadcast([tensor], root_rank, name, process_set, is_in_place=False)
        return synchronize(handle)[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient, averaged over the ranks, on the root, and zeros elsewhere."""
        scaling = Scaling(Average, 1.0, 1.0, ctx.process_set)
        mean = synchronize(start_allreduce([gradient], scaling, lambda all_: all_[0], ctx.name))
        is_root = ctx.process_set.communicator().rank == ctx.root
        return (mean if is_root else torch.zeros_like(mean)), None, None, None


@after_init
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Return the tensor of rank `root_rank`; it has a gradient.

    Args:
        tensor: The tensor to send; on the other ranks, one of the same shape and dtype.
        root_rank: The rank of the job that sends.
        name: Name that no other operation has at the same time.
        process_set: The ranks that take part.

    Raises:
        OptionError: An argument is wrong.
        HorovodMismatchError: Ranks have different roots, shapes or dtypes; the next call works.
        HorovodInternalError: A rank was lost.
    """
    result: torch.Tensor = _BroadcastFunction.apply(  # type: ignore[no-untyped-call]
        tensor, root_rank, name, process_set
    )
    return result


@after_init
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start broadcast() without a gradient; synchronize() of the handle returns a new tensor."""
    return _single(tensor, root_rank, name, process_set, is_in_place=False)


@after_init
def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Replace the tensor's content by that of rank `root_rank`, and return it."""
    result: torch.Tensor = synchronize(
        _single(tensor, root_rank, name, process_set, is_in_place=True)
    )
    return result


@after_init
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start broadcast_(); synchronize() of the handle writes the result into the tensor."""
    return _single(tensor, root_rank, name, process_set, is_in_place=True)


def _single(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    is_in_place: bool,
) -> int:
    handle = start_broadcast([tensor], root_rank, name, process_set, is_in_place=is_in_place)
    return handles.then(handle, lambda results: results[0])


@after_init
def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all ranks of the process set have called this.

    Raises:
        HorovodMismatchError: A rank has called something else; the next call works.
        HorovodInternalError: A rank was lost.
    """
    process_set.communicator().header("barrier", "")


@after_init
def join(device: int = -1) -> int:
    """Wait until all ranks have joined; meanwhile take part in their all-reduces with zeros.

    A rank that has no more data calls it, so that ranks with more data can go on. Averages are
    still divided by the number of all ranks. Other collectives than all-reduces with op Sum or
    Average fail while a rank has joined. As long as no rank has joined, all-reduces cost what they
    always cost; a rank that has joined answers them by itself.

    Args:
        device: -1, or the number of a GPU of this machine, which is only checked: zeros are in the
            host's memory.

    Returns:
        The rank that has joined last: the one that has started the most collectives, and of several
        the highest.

    Raises:
        OptionError: `device` is no GPU of this machine, or init() was not called.
        HorovodInternalError: A rank was lost.
    """
    communicator = global_process_set.communicator()
    require(
        device == -1 or 0 <= device < torch.cuda.device_count() or not torch.cuda.is_available(),
        what=f"device is {device}",
        why=f"this machine has {torch.cuda.device_count()} GPUs",
        hint="Pass the number of a GPU, or leave it out for tensors on the CPU",
        about="device",
    )
    return int(communicator.join())
