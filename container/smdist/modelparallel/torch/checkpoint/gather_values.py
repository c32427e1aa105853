# SPDX-License-Identifier: Apache-2.0
"""Gather values of several ranks, one value at a time.

Each replica holds the whole model, so one replica can gather alone; scripts for SMP let dp_rank 0
alone do so. If replicas share values among them (FSDP2), all replicas must take part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch.checkpoint.local_values import (
    LocalValues,
    check_complete,
    local_values_of,
)
from smdist.modelparallel.torch.checkpoint.team import Team


@dataclass(frozen=True, slots=True)
class Fact:
    """Description of a value that a rank holds.

    Attributes:
        shape: Shape of the whole tensor; None for other objects.
        dtype: Type of the tensor's elements; None for other objects.
        content: The object itself, if it is no tensor.
        ranks: Ranks of the world that hold the value; each holds a shard if there are several.
    """

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    content: Any
    ranks: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Return the size of the whole tensor."""
        if self.shape is None or self.dtype is None:
            return 0
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ValueOwner:
    """First rank of a team that holds a value, and its description of the value."""

    owner: int
    fact: Fact


def team_of(holding: LocalValues) -> Team:
    """Return the ranks that together hold a whole model.

    These are the ranks of this replica, if each replica holds the whole model. They are all ranks
    of the world if replicas share values among them, or if the model is plain or
    not cut.
    """
    split = holding.split
    if split is None or not split.is_cut or split.is_sharded:
        return Team.here()
    return Team.of(split.groups.of(Axis.MP))


def directory(values: Mapping[str, Any], team: Team) -> dict[str, ValueOwner]:
    """Return the owner of every value, by key, in the order of ranks; collective."""
    facts = {key: _fact(value, team) for key, value in values.items()}
    found: dict[str, ValueOwner] = {}
    for rank, of_rank in enumerate(team.gather(facts)):
        for key, fact in of_rank.items():
            found.setdefault(key, ValueOwner(rank, fact))
    return found


def _fact(value: Any, team: Team) -> Fact:
    ranks = (team.in_world(team.rank),)
    if not isinstance(value, Tensor):
        return Fact(None, None, value, ranks)
    if isinstance(value, DTensor):
        ranks = tuple(value.device_mesh.mesh.flatten().tolist())
    return Fact(tuple(value.shape), value.dtype, None, ranks)


def whole(value: Any, found: ValueOwner, team: Team) -> Tensor | None:
    """Return the whole tensor on the CPU of its owner; gather its shards from their ranks."""
    if team.in_world(team.rank) not in found.fact.ranks or not isinstance(value, Tensor):
        return None
    full = value.detach()
    if isinstance(full, DTensor):
        full = full.full_tensor()
    return full.cpu() if team.rank == found.owner else None


def gathered(values: Mapping[str, Any], team: Team, *, to_rank0: bool) -> Iterator[tuple[str, Any]]:
    """Yield every whole value on every rank of a team, or on its first rank; collective.

    Yields:
        Keys and values; nothing on other ranks with `to_rank0`.
    """
    for key, found in directory(values, team).items():
        if found.fact.shape is None:
            value = found.fact.content
        else:
            value = _moved(whole(values.get(key), found, team), found, team, to_rank0)
        if team.is_first or not to_rank0:
            yield key, value


def _moved(tensor: Tensor | None, found: ValueOwner, team: Team, to_rank0: bool) -> Tensor | None:
    """Return the tensor on the ranks that want it; it travels as bytes, whatever its type."""
    if team.size == 1 or (to_rank0 and found.owner == 0):
        return tensor
    fact = found.fact
    assert fact.shape is not None
    assert fact.dtype is not None
    if team.rank == found.owner:
        assert tensor is not None
        data = tensor.contiguous().reshape(-1).view(torch.uint8)
    else:
        data = torch.empty(fact.num_bytes, dtype=torch.uint8)
    if data.numel():
        _move(data, found.owner, team, to_rank0)
    return tensor if team.rank == found.owner else data.view(fact.dtype).view(fact.shape)


def _move(data: Tensor, owner: int, team: Team, to_rank0: bool) -> None:
    if not to_rank0:
        dist.broadcast(data, group=team.group, group_src=owner)
    elif team.rank == owner:
        dist.send(data, group=team.group, group_dst=0)
    elif team.is_first:
        dist.recv(data, group=team.group, group_src=owner)


def gather_state_dict(model: nn.Module, to_rank0: bool = False) -> dict[str, Any]:
    """Return the state of a whole model under its own names, on the CPU.

    Collective over the ranks of one replica, once the model is cut: all replicas may call it, or
    only one, such as that of dp_rank 0. With sharding="optimizer" or "full", and before the cut,
    it is collective over all ranks: if only some ranks call it, they wait for the others.

    Args:
        model: The result of `smp.parallelize`, or a plain module.
        to_rank0: True: only rank 0 of the world gets the state; other ranks get an empty
            dictionary.

    Returns:
        Values by name. Buffers are those of this replica, or of the first replica if all replicas
        take part.

    Raises:
        CheckpointError: A value of the model is on no rank.
    """
    holding = local_values_of(model)
    team = team_of(holding)
    check_complete(holding, team)
    if to_rank0 and team.in_world(0) != 0:
        return {}
    found = {
        key: value.clone() if _is_same(value, holding.values.get(key)) else value
        for key, value in gathered(holding.values, team, to_rank0=to_rank0)
    }
    if not found:
        return {}
    names = [name for entry in holding.entries for name in (entry.name, *entry.aliases)]
    return {name: found[holding.first[name]] for name in names}


def _is_same(value: Any, own: Any) -> bool:
    """Tell whether a gathered value is the model's own memory, which later steps would change."""
    if not isinstance(value, Tensor) or not isinstance(own, Tensor) or isinstance(own, DTensor):
        return False
    return value.data_ptr() == own.data_ptr()
