# SPDX-License-Identifier: Apache-2.0
"""Buckets: flat buffers of gradients. A bucket is averaged when all its gradients are complete.

    stage 1   B0 B1 B2 |-- B3 --|
                         |- all-reduce of buckets 0, 1, 2 -|
    stage 0            B0 B1 B2 |-- B3 --|
                                  |- all-reduce of buckets 0, 1, 2 -|   finish

B0 is the backward pass of microbatch 0, and so on; B3 is the last one, and drawn longer. All
parameters of a bucket have one dtype and belong to the same stages of this rank: to one stage, or
to several stages that share them. Bucket 0 has the last parameters, whose gradients a backward pass
computes first. The all-reduce of a bucket starts during the last backward pass of the last of its
stages, as soon as this bucket and all before it are complete. The last bucket starts after this
pass. The order of stages is that of the schedule, and the order of buckets is fixed, so all
replicas start the all-reduces in the same order. Where a backward pass is split into two halves,
few gradients come in order, and most all-reduces start after it.

A parameter may have a gradient on some replicas only. A replica without a gradient sends zeros. The
last bucket of each set of stages also has one flag for each parameter of this set: 1 if the rank
has a gradient. After the all-reduce, the flags show which parameters have a gradient on any
replica. One more flag shows that gradients of some rank have grown after their bucket was sent, as
with `torch.utils.checkpoint(use_reentrant=True)` and a parameter that is used twice. All replicas
then send what was missing, and later steps start all buckets after the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from smdist.modelparallel.core.simulate import bucket_bytes
from smdist.modelparallel.torch.replicas.owned_params import OwnedParam

_AVERAGING = ("smdist", "nccl")


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
        before: Buckets of the same rank that these ones replace, after parameters were frozen or
            unfrozen; None for the first ones.
    """

    def __init__(
        self, held: Sequence[OwnedParam], group: dist.ProcessGroup, fusion_bytes: int,
        before: GradientBuckets | None = None,
    ) -> None:  # fmt: skip
        self._group = group
        is_alone = group.size() == 1
        self._sets = [] if is_alone else [_BucketSet(*each) for each in _sets(held, fusion_bytes)]
        self._ended: set[int] = set()
        self._running: list[_BucketSet] = []
        self._overlaps: bool = before is None or before._overlaps

    def begin(self) -> None:
        """Begin a step; discard all-reduces of an earlier step that failed."""
        self._ended.clear()
        self._running.clear()
        for each in self._sets:
            each.discard()

    def watch(self, stage: int) -> None:
        """Start all-reduces during the backward pass that follows, the last one of a stage.

        If several sets of buckets end with this stage, only those of the first set start during the
        pass, since the order of all-reduces is fixed.

        Args:
            stage: Number of the stage.
        """
        if self._overlaps:
            complete = next(self._complete({*self._ended, stage}), None)
            if complete is not None:
                complete.watch(self._group)

    def end(self, stage: int) -> None:
        """Start the all-reduces of buckets whose gradients are complete.

        Call this after the last backward pass of a stage in a step.

        Args:
            stage: Number of the stage.
        """
        self._ended.add(stage)
        for each in list(self._complete(self._ended)):
            each.start(self._group)
            self._running.append(each)

    def _complete(self, ended: Set[int]) -> Iterator[_BucketSet]:
        """Yield the sets that have not been started, and whose stages have all ended."""
        return (s for s in self._sets if s not in self._running and s.stages <= ended)

    def finish(self) -> None:
        """Wait for all all-reduces, and set the averages as gradients.

        If no replica has a gradient of a parameter, the gradient becomes None.
        """
        for each in self._running:
            if each.finish(self._group):
                self._overlaps = False
        self._running.clear()


class _BucketSet:
    """Buckets of all parameters that belong to one stage, or to the same group of stages.

    Args:
        stages: The stages.
        buckets: Parameters of each bucket.

    Attributes:
        stages: The stages.
        _missing: Numbers of the parameters of each bucket whose gradients are still to come; empty
            if no all-reduce may start during a backward pass.
        _had: True for each parameter that had a gradient when its bucket was sent, by number.
        _unused: Numbers of the parameters that had no gradient on any replica in the last step. No
            bucket waits for them.
    """

    def __init__(self, stages: frozenset[int], buckets: list[list[nn.Parameter]]) -> None:
        self.stages = stages
        self._buckets = buckets
        self._all = [parameter for bucket in buckets for parameter in bucket]
        self._hooks: list[RemovableHandle] = []
        self._missing: list[set[int]] = []
        self._had: dict[int, bool] = {}
        self._unused: set[int] = set()
        self._pending: list[_PendingReduction] = []

    def discard(self) -> None:
        """Forget a step that has failed."""
        self._ignore()
        self._pending = []
        self._had = {}

    def watch(self, group: dist.ProcessGroup) -> None:
        """Start the all-reduce of each bucket but the last as soon as its gradients are complete.

        Args:
            group: Process group of the replicas.
        """
        early = self._buckets[:-1]
        self._missing = [set(map(id, bucket)) - self._unused for bucket in early]
        for number, bucket in enumerate(early):
            for parameter in bucket:
                if parameter.requires_grad:
                    take = partial(self._take, number, group)
                    hook = parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]
                    self._hooks.append(hook)

    def _take(self, number: int, group: dist.ProcessGroup, parameter: Tensor) -> None:
        """Note that a gradient has come; start the all-reduces whose turn it is.

        Args:
            number: Number of the parameter's bucket.
            group: Process group of the replicas.
            parameter: Parameter with the gradient.
        """
        self._missing[number].discard(id(parameter))
        while (following := len(self._pending)) < len(self._missing):
            if self._missing[following]:
                return
            self._start(following, group)

    def start(self, group: dist.ProcessGroup) -> None:
        """Start the all-reduces that have not started yet, at last the one with the flags.

        Args:
            group: Process group of the replicas.
        """
        self._ignore()
        is_late = any(
            parameter.grad is not None
            for bucket in self._buckets[: len(self._pending)]
            for parameter in bucket
        )
        for number in range(len(self._pending), len(self._buckets)):
            self._start(number, group, is_late=is_late)

    def _ignore(self) -> None:
        """Start no more all-reduces in backward passes."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._missing = []

    def _start(self, number: int, group: dist.ProcessGroup, *, is_late: bool = False) -> None:
        bucket = self._buckets[number]
        self._had.update((id(p), p.grad is not None) for p in bucket)
        flags = []
        if number == len(self._buckets) - 1:
            has = [self._had[id(p)] or p.grad is not None for p in self._all]
            flags = [float(each) for each in (*has, is_late)]
        self._pending.append(_start_reduction(bucket, flags, group))

    def finish(self, group: dist.ProcessGroup) -> bool:
        """Wait for the all-reduces, and set the averages as gradients.

        Args:
            group: Process group of the replicas.

        Returns:
            True if gradients of a replica have grown after their bucket was sent.
        """
        for pending in self._pending:
            pending.work.wait()
        pairs = zip(self._pending, self._buckets, strict=True)
        parts = [_parts(pending.buffer, bucket) for pending, bucket in pairs]
        *has, is_late = (parts[-1].pop() > 0).tolist()
        if is_late:
            self._add_late(parts, group)
        has_gradient = dict(zip(map(id, self._all), has, strict=True))
        self._unused = {number for number, has in has_gradient.items() if not has}
        for bucket, means in zip(self._buckets, parts, strict=True):
            for parameter, mean in zip(bucket, means, strict=False):
                set_gradient(parameter, mean if has_gradient[id(parameter)] else None)
        self.discard()
        return bool(is_late)

    def _add_late(self, parts: list[list[Tensor]], group: dist.ProcessGroup) -> None:
        """Average the gradients that came after their bucket was sent, and add them.

        All replicas do this if one of them has such gradients.

        Args:
            parts: Averages of each bucket by parameter, to which the late ones are added.
            group: Process group of the replicas.
        """
        for bucket, means in zip(self._buckets[:-1], parts[:-1], strict=True):
            late = _start_reduction(bucket, [], group)
            late.work.wait()
            for mean, more in zip(means, _parts(late.buffer, bucket), strict=True):
                mean.add_(more)


def _parts(buffer: Tensor, bucket: list[nn.Parameter]) -> list[Tensor]:
    """Return the numbers of a bucket's buffer by parameter, and at last its flags."""
    lengths = [parameter.numel() for parameter in bucket]
    return list(torch.split(buffer, [*lengths, len(buffer) - sum(lengths)]))


@dataclass(frozen=True, slots=True)
class _PendingReduction:
    """All-reduce that has started: its buffer, and the handle to wait for it."""

    buffer: Tensor
    work: dist.Work


def _start_reduction(
    bucket: list[nn.Parameter], flags: list[float], group: dist.ProcessGroup
) -> _PendingReduction:
    """Copy the gradients of a bucket to a buffer, and start an all-reduce of the buffer.

    Args:
        bucket: Parameters of the bucket; their gradients become None.
        flags: Numbers that the buffer has after the gradients.
        group: Process group of the replicas.

    Returns:
        The buffer, and the handle to wait for the all-reduce.
    """
    with torch.no_grad():
        vectors = flattened(bucket)
        buffer = torch.cat([*vectors, vectors[0].new_tensor(flags)] if flags else vectors)
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
    for each in reversed(held):
        of = by_stages.setdefault(each.stages, {})
        of.setdefault(each.parameter.dtype, []).append(each.parameter)
    place = {id(each.parameter): number for number, each in enumerate(reversed(held))}
    for stages, by_dtype in by_stages.items():
        buckets = [b for of in by_dtype.values() for b in _buckets(of, fusion_bytes)]
        yield stages, sorted(buckets, key=lambda bucket: place[id(bucket[-1])])  # as they complete


def _buckets(parameters: list[nn.Parameter], fusion_bytes: int) -> Iterator[list[nn.Parameter]]:
    """Yield lists of consecutive parameters that have at most `fusion_bytes` bytes together.

    A parameter with more bytes has a list of its own.
    """
    sizes = [parameter.numel() * parameter.element_size() for parameter in parameters]
    limit = bucket_bytes(sum(sizes), fusion_bytes)
    bucket: list[nn.Parameter] = []
    num_bytes = 0
    for parameter, size in zip(parameters, sizes, strict=True):
        if bucket and num_bytes + size > limit:
            yield bucket
            bucket, num_bytes = [], 0
        bucket.append(parameter)
        num_bytes += size
    if bucket:
        yield bucket
