# SPDX-License-Identifier: Apache-2.0
"""Buckets: flat buffers of gradients. A bucket is averaged when all its gradients are complete.

    stage 1   B0 B1 B2 B3 |-- all-reduce of its buffers --|
    stage 0         B0 B1 B2 B3 ...                        |-- all-reduce --|   finish

B0 is the backward pass of microbatch 0, and so on. All parameters of a bucket have one dtype and
belong to the same stages of this rank: to one stage, or to several stages that share them. The
all-reduce of a bucket starts after the last backward pass of these stages. So all replicas start
the all-reduces in the same order, which the schedule determines.

A parameter may have a gradient on some replicas only. A replica without a gradient sends zeros. The
first bucket of each set of stages also has one flag for each parameter of this set: 1 if the rank
has a gradient. After the all-reduce, the flags show which parameters have a gradient on any
replica.

`OwnedParam` is a parameter with its stages. `broadcast` copies values from replica 0 to the
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdist.modelparallel.core.graph import Graph

_AVERAGING = ("smdist", "nccl")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OwnedParam:
    """Parameter that one or several stages of this rank hold.

    Attributes:
        name: Name of the parameter in the model, the same on all ranks. If the model has the
            parameter under several names, this is the first one.
        parameter: Parameter of this rank's stages.
        stages: Stages of this rank that hold the parameter.
    """

    name: str
    parameter: nn.Parameter
    stages: frozenset[int]


def owned_params(
    stages: Mapping[int, nn.Module], graph: Graph, *, trained: bool = True
) -> tuple[OwnedParam, ...]:
    """Return the parameters of some stages, in an order that is the same on every replica.

    Args:
        stages: Stages of this rank, by number.
        graph: Graph of the whole model, with the names of its parameters.
        trained: True leaves out frozen parameters.
    """
    first = {name: p.name for p in graph.parameters for name in (p.name, *p.aliases)}
    found: dict[str, tuple[nn.Parameter, set[int]]] = {}
    for number, stage in stages.items():
        for name, parameter in stage.named_parameters():
            found.setdefault(first[name], (parameter, set()))[1].add(number)
    return tuple(
        OwnedParam(name=p.name, parameter=found[p.name][0], stages=frozenset(found[p.name][1]))
        for p in graph.parameters
        if p.name in found and (found[p.name][0].requires_grad or not trained)
    )


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that is on this rank, as a dense tensor.

    The result is this rank's shard of a DTensor. Any other tensor is returned whole.
    """
    if isinstance(tensor, DTensor):
        tensor = tensor._local_tensor
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def numbers(gradient: Tensor) -> Tensor:
    """Return the dense tensor that holds a gradient's elements, to scale them in place.

    The result is the values of a sparse gradient, this rank's shard of a DTensor, or any other
    gradient itself.
    """
    return gradient._values() if gradient.is_sparse else local(gradient)


def added(earlier: Tensor, more: Tensor) -> Tensor:
    """Add two gradients, and return the sum; it is sparse if both gradients are sparse.

    One of the two tensors is changed in place to hold the sum, and is returned.
    """
    if earlier.is_sparse and not more.is_sparse:
        earlier, more = more, earlier
    if more.is_sparse:
        return earlier.add_(more)
    local(earlier).add_(local(more))
    return earlier


def flattened(parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return this rank's part of each parameter's gradient as a vector; zeros if there is none."""
    return [
        local(p).new_zeros(local(p).numel()) if p.grad is None else local(p.grad).reshape(-1)
        for p in parameters
    ]


def flags(parameters: list[nn.Parameter], like: Tensor) -> Tensor:
    """Return a vector with 1 for each parameter that has a gradient on this rank, and 0 for others.

    Args:
        parameters: Parameters, one for each element of the vector.
        like: Tensor with the dtype and device that the vector gets.
    """
    return like.new_tensor([0.0 if p.grad is None else 1.0 for p in parameters])


def set_gradient(parameter: nn.Parameter, values: Tensor | None) -> None:
    """Set or remove the gradient of a parameter.

    Args:
        parameter: Parameter to change.
        values: Elements of the gradient on this rank, as a vector. None removes the gradient.
    """
    if values is None:
        parameter.grad = None
        return
    if isinstance(parameter, DTensor):
        shard = values.view(parameter._local_tensor.shape)
        parameter.grad = DTensor(shard, parameter._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    else:
        parameter.grad = values.view(parameter.shape)


class GradientBuckets:
    """Buckets of one rank, which average its gradients over replicas.

    Args:
        held: Parameters whose gradients are averaged, in the same order on all replicas.
        group: Process group of the replicas of this rank's stages.
        fusion_bytes: Largest size of a bucket in bytes; a larger parameter has its own bucket.
    """

    def __init__(
        self, held: Sequence[OwnedParam], group: dist.ProcessGroup, fusion_bytes: int
    ) -> None:
        self._group = group
        is_alone = group.size() == 1
        self._sets = [] if is_alone else [_BucketSet(*each) for each in _sets(held, fusion_bytes)]
        self._ended: set[int] = set()
        self._running: list[_BucketSet] = []

    def begin(self) -> None:
        """Begin a step; discard all-reduces of an earlier step that failed."""
        self._ended.clear()
        self._running.clear()

    def end(self, stage: int) -> None:
        """Start the all-reduces of buckets whose gradients are complete.

        Call this after the last backward pass of a stage in a step.

        Args:
            stage: Number of the stage.
        """
        self._ended.add(stage)
        for each in self._sets:
            if each not in self._running and each.stages <= self._ended:
                self._start(each)

    def finish(self) -> None:
        """Wait for all all-reduces, and set the averages as gradients.

        If no replica has a gradient of a parameter, the gradient becomes None.
        """
        for each in self._running:
            each.finish()
        self._running.clear()

    def _start(self, each: _BucketSet) -> None:
        each.start(self._group)
        self._running.append(each)


class _BucketSet:
    """Buckets of all parameters that belong to one stage, or to the same group of stages."""

    def __init__(self, stages: frozenset[int], buckets: list[list[nn.Parameter]]) -> None:
        self.stages = stages
        self._buckets = buckets
        self._all = [parameter for bucket in buckets for parameter in bucket]
        self._pending: list[_PendingReduction] = []

    def start(self, group: dist.ProcessGroup) -> None:
        """Start the all-reduce of each bucket over the replicas in `group`."""
        self._pending = [
            _start_reduction(bucket, self._all if number == 0 else [], group)
            for number, bucket in enumerate(self._buckets)
        ]

    def finish(self) -> None:
        """Wait for the all-reduces, and set the averages as gradients."""
        has_gradient: dict[int, bool] = {}
        for bucket, pending in zip(self._buckets, self._pending, strict=True):
            pending.work.wait()
            lengths = [p.numel() for p in bucket]
            *means, rest = torch.split(
                pending.buffer, [*lengths, len(pending.buffer) - sum(lengths)]
            )
            if not has_gradient:
                has_gradient = dict(zip(map(id, self._all), (rest > 0).tolist(), strict=True))
            for parameter, mean in zip(bucket, means, strict=True):
                set_gradient(parameter, mean if has_gradient[id(parameter)] else None)
        self._pending = []


@dataclass(frozen=True, slots=True)
class _PendingReduction:
    """All-reduce that has started: its buffer, and the handle to wait for it."""

    buffer: Tensor
    work: dist.Work


def _start_reduction(
    bucket: list[nn.Parameter], flagged: list[nn.Parameter], group: dist.ProcessGroup
) -> _PendingReduction:
    """Copy the gradients of a bucket to a buffer, and start an all-reduce of the buffer.

    Args:
        bucket: Parameters of the bucket; their gradients become None.
        flagged: Parameters for which the buffer also has flags: 1 if this rank has a gradient.
        group: Process group of the replicas.

    Returns:
        The buffer, and the handle to wait for the all-reduce.
    """
    with torch.no_grad():
        buffer = torch.cat([*flattened(bucket), flags(flagged, like=bucket[0].detach())])
        for parameter in bucket:
            parameter.grad = None  # freed, since the buffer has a copy
        averages = group._get_backend(buffer.device).name().lower() in _AVERAGING
        if not averages:
            buffer.div_(group.size())
        op = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM
        work = dist.all_reduce(buffer, op, group=group, async_op=True)
    assert work is not None
    return _PendingReduction(buffer, work)


def _sets(
    held: Sequence[OwnedParam], fusion_bytes: int
) -> Iterator[tuple[frozenset[int], list[list[nn.Parameter]]]]:
    """Group parameters by the stages that hold them, and divide each group into buckets.

    Args:
        held: All parameters whose gradients are averaged.
        fusion_bytes: Largest size of a bucket in bytes.

    Yields:
        Numbers of the stages of a group, and the buckets of the group.
    """
    by_stages: dict[frozenset[int], dict[torch.dtype, list[nn.Parameter]]] = {}
    for each in held:
        of = by_stages.setdefault(each.stages, {})
        of.setdefault(each.parameter.dtype, []).append(each.parameter)
    for stages, by_dtype in by_stages.items():
        yield stages, [b for of in by_dtype.values() for b in _buckets(of, fusion_bytes)]


def _buckets(parameters: list[nn.Parameter], fusion_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Yield lists of consecutive parameters that have at most `fusion_bytes` bytes together.

    A parameter with more bytes has a list of its own.
    """
    bucket: list[nn.Parameter] = []
    num_bytes = 0
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if bucket and num_bytes + size > fusion_bytes:
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(parameter)
        num_bytes += size
    if bucket:
        yield bucket


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup, fusion_bytes: int) -> None:
    """Copy tensors from rank 0 of a group to the others, in buffers of up to `fusion_bytes`."""
    if group.size() == 1:
        return
    with torch.no_grad():
        for alike in _alike(tensors, fusion_bytes):
            buffer = torch.cat([tensor.detach().reshape(-1) for tensor in alike])
            dist.broadcast(_as_bytes(buffer), group=group, group_src=0)
            parts = torch.split(buffer, [tensor.numel() for tensor in alike])
            for tensor, part in zip(alike, parts, strict=True):
                tensor.detach().copy_(part.view(tensor.shape))


def _as_bytes(buffer: Tensor) -> Tensor:
    """View a buffer as bytes, which every backend can copy, unlike some other dtypes."""
    return buffer.view(torch.uint8)


def _alike(tensors: Iterable[Tensor], fusion_bytes: int) -> Iterator[list[Tensor]]:
    """Yield lists of tensors of one dtype and device, of up to `fusion_bytes` per list."""
    open_: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        if not tensor.numel():
            continue
        key = tensor.dtype, tensor.device
        found = open_.setdefault(key, [])
        size = sum(each.numel() for each in found) + tensor.numel()
        if found and size * tensor.element_size() > fusion_bytes:
            yield open_.pop(key)
        open_.setdefault(key, []).append(tensor)
    yield from open_.values()
