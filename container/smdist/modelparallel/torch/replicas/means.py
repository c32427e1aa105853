# SPDX-License-Identifier: Apache-2.0
"""Means of whole gradients over replicas: flat buffers, each on its way as soon as it is final.

    stage 1   B0 B1 B2 B3 |-- all-reduce of its buffers --|
    stage 0         B0 B1 B2 B3 ...                        |-- all-reduce --|   finish

A buffer has parameters of one type that the same stages of this rank hold. It starts when the last
of these has ended its last backward pass. That is in the order of the schedule, so all replicas
start buffers in the same order. Which parameters have a gradient may differ between replicas: the
first buffer also carries a number for each, and who has none takes part with zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdist.modelparallel.torch.replicas.held import (
    HeldParameter,
    flags,
    flattened,
    set_gradient,
)

_AVERAGING = ("smdist", "nccl")


class Means:
    """The reductions of one rank.

    Args:
        held: What is reduced, in an order that replicas agree on.
        group: The replicas of this rank.
        fusion_bytes: Of a buffer; a larger parameter has one of its own.
    """

    def __init__(
        self, held: Sequence[HeldParameter], group: dist.ProcessGroup, fusion_bytes: int
    ) -> None:
        self._group = group
        is_alone = group.size() == 1
        self._sets = [] if is_alone else [_Set(*each) for each in _sets(held, fusion_bytes)]
        self._ended: set[int] = set()
        self._running: list[_Set] = []

    def begin(self) -> None:
        """A step begins; what an earlier one that failed has left is forgotten."""
        self._ended.clear()
        self._running.clear()

    def end(self, stage: int) -> None:
        """A stage has ended its last backward pass."""
        self._ended.add(stage)
        for each in self._sets:
            if each not in self._running and each.stages <= self._ended:
                self._start(each)

    def finish(self) -> None:
        """Wait, and put the means in place: None where no replica has a gradient."""
        for each in self._running:
            each.finish()
        self._running.clear()

    def _start(self, each: _Set) -> None:
        each.start(self._group)
        self._running.append(each)


class _Set:
    """What the same stages hold."""

    def __init__(self, stages: frozenset[int], buckets: list[list[nn.Parameter]]) -> None:
        self.stages = stages
        self._buckets = buckets
        self._all = [parameter for bucket in buckets for parameter in bucket]
        self._flying: list[_Flight] = []

    def start(self, group: dist.ProcessGroup) -> None:
        self._flying = [
            _launch(bucket, self._all if number == 0 else [], group)
            for number, bucket in enumerate(self._buckets)
        ]

    def finish(self) -> None:
        has_gradient: dict[int, bool] = {}
        for bucket, flight in zip(self._buckets, self._flying, strict=True):
            flight.work.wait()
            lengths = [p.numel() for p in bucket]
            *means, rest = torch.split(flight.buffer, [*lengths, len(flight.buffer) - sum(lengths)])
            if not has_gradient:
                has_gradient = dict(zip(map(id, self._all), (rest > 0).tolist(), strict=True))
            for parameter, mean in zip(bucket, means, strict=True):
                set_gradient(parameter, mean if has_gradient[id(parameter)] else None)
        self._flying = []


@dataclass(frozen=True, slots=True)
class _Flight:
    buffer: Tensor
    work: dist.Work


def _launch(
    bucket: list[nn.Parameter], flagged: list[nn.Parameter], group: dist.ProcessGroup
) -> _Flight:
    with torch.no_grad():
        buffer = torch.cat([*flattened(bucket), flags(flagged, like=bucket[0].detach())])
        for parameter in bucket:
            parameter.grad = None  # the buffer has it: no memory for both
        averages = group._get_backend(buffer.device).name().lower() in _AVERAGING
        if not averages:
            buffer.div_(group.size())
        op = dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM
        work = dist.all_reduce(buffer, op, group=group, async_op=True)
    assert work is not None
    return _Flight(buffer, work)


def _sets(
    held: Sequence[HeldParameter], fusion_bytes: int
) -> Iterator[tuple[frozenset[int], list[list[nn.Parameter]]]]:
    by_stages: dict[frozenset[int], dict[torch.dtype, list[nn.Parameter]]] = {}
    for each in held:
        of = by_stages.setdefault(each.stages, {})
        of.setdefault(each.parameter.dtype, []).append(each.parameter)
    for stages, by_dtype in by_stages.items():
        yield stages, [b for of in by_dtype.values() for b in _buckets(of, fusion_bytes)]


def _buckets(parameters: list[nn.Parameter], fusion_bytes: int) -> Iterator[list[nn.Parameter]]:
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
