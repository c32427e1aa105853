# SPDX-License-Identifier: Apache-2.0
"""Chain of equal blocks, and the bytes that a pipeline of it holds in theory.

A block of width d is Linear(d, 4 d), GELU, Linear(4 d, d). For each row of its input it keeps

    its input (d numbers)   input of the GELU (4 d)   output of the GELU (4 d)

until its backward pass. The input of the first block is the batch, which is in memory anyway.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from smdist.modelparallel.core.cost import NodeCost
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.core.simulate import simulate

_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Size of the model: number of blocks, their width, and rows of a microbatch."""

    num_blocks: int
    width: int
    rows: int

    def model(self) -> nn.Sequential:
        """Return the model, with random weights."""
        return nn.Sequential(*(_block(self.width) for _ in range(self.num_blocks)))

    def batch(self, num_microbatches: int) -> Tensor:
        """Return a batch of that many microbatches, equal in each process."""
        generator = torch.Generator().manual_seed(0)
        return torch.randn(self.rows * num_microbatches, self.width, generator=generator)

    @property
    def parameter_bytes(self) -> int:
        """Parameter bytes of a block."""
        return (8 * self.width**2 + 5 * self.width) * _BYTES

    @property
    def value_bytes(self) -> int:
        """Bytes that one microbatch sends from block to block."""
        return self.rows * self.width * _BYTES

    def saved_bytes(self, num_blocks: int, *, is_first: bool) -> int:
        """Return the activation bytes that a stage saves for one microbatch."""
        return (9 * num_blocks - is_first) * self.value_bytes


def _block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Maximum bytes of a rank: saved for backward passes, in receive buffers, and parameters."""

    saved: int
    received: int
    parameters: int


def theory(shape: Shape, schedule: Schedule, blocks: Sequence[int]) -> list[Held]:
    """Return the theoretical bytes by rank; `blocks` is the number of blocks of each stage.

    The saved bytes are those of all microbatches that the schedule has in flight. Receive buffers
    hold the input of one action and the input of the next one.
    """
    saved = [
        NodeCost(saved_bytes=shape.saved_bytes(count, is_first=stage == 0))
        for stage, count in enumerate(blocks)
    ]
    keeping = simulate(schedule, saved).peaks
    receiving = simulate(schedule, [NodeCost()] * len(blocks), edges=_edges(shape, len(blocks)))
    return [
        Held(
            saved=keeping[rank].saved_bytes,
            received=receiving.peaks[rank].receive_bytes,
            parameters=sum(blocks[stage] for stage in stages) * shape.parameter_bytes,
        )
        for rank, stages in enumerate(schedule.stages_of)
    ]


def _edges(shape: Shape, num_stages: int) -> list[Edge]:
    return [
        Edge(
            value=str(stage),
            source=stage,
            target=stage + 1,
            num_bytes=shape.value_bytes,
            has_gradient=True,
        )
        for stage in range(num_stages - 1)
    ]


@dataclass(slots=True)
class Kept:
    """Bytes that autograd saves, each storage counted once: now and at most."""

    ignored: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    now: int = 0
    most: int = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count saved tensors within this context until they are released."""
        with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
            yield

    def ignore(self, tensors: Iterator[Tensor] | Sequence[Tensor]) -> None:
        """Leave these tensors out of the count, because they are in memory anyway."""
        self.ignored |= {each.untyped_storage().data_ptr() for each in tensors}

    def _pack(self, tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        key, num_bytes = storage.data_ptr(), storage.nbytes()
        box = _Box(tensor)
        if key not in self.ignored:
            self._add(key, num_bytes)
            weakref.finalize(box, self._remove, key, num_bytes)
        return box

    def _add(self, key: int, num_bytes: int) -> None:
        self.counts[key] = self.counts.get(key, 0) + 1
        self.now += num_bytes * (self.counts[key] == 1)
        self.most = max(self.most, self.now)

    def _remove(self, key: int, num_bytes: int) -> None:
        self.counts[key] -= 1
        self.now -= num_bytes * (self.counts[key] == 0)


class _Box:
    """Saved tensor, counted as long as this object lives."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def _unpack(box: _Box) -> Tensor:
    return box.tensor


def parameters_alive() -> int:
    """Return the bytes of all parameters in this process."""
    gc.collect()
    found = [each for each in gc.get_objects() if issubclass(type(each), nn.Parameter)]
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in found}
    return sum(storages.values())
