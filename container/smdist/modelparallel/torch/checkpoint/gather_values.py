# SPDX-License-Identifier: Apache-2.0
"""Gathering of values from several ranks, one value at a time.

The ranks of one replica together have the whole model, so they can gather it without the ranks of
other replicas. Scripts for SMP gather on the ranks with dp_rank 0 only. If values are sharded over
replicas (FSDP2), the ranks of all replicas have to take part.
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
from smdist.modelparallel.torch.checkpoint.tensor_parts import joined, ranks_of
from smdist.modelparallel.torch.tensor_splits import whole_shape_of


@dataclass(frozen=True, slots=True)
class Fact:
    """Description of one value that a rank has: a tensor, or another object.

    Attributes:
        shape: Shape of the whole tensor; None for other objects.
        dtype: Type of the tensor's elements; None for other objects.
        content: The object itself if it is no tensor; None for a tensor.
        ranks: Ranks of the world that have the value; if there are several, each has a shard.
    """

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    content: Any
    ranks: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor in bytes; 0 for other objects."""
        if self.shape is None or self.dtype is None:
            return 0
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ValueOwner:
    """Rank that sends a value to the others when values are gathered, with a description of it.

    Attributes:
        owner: Number of the rank among the ranks that gather.
        fact: Description of the value.
    """

    owner: int
    fact: Fact


def team_of(holding: LocalValues) -> Team:
    """Return the ranks that together have all values of a model.

    These are usually the ranks of this rank's replica. The result is all ranks of the world if
    values are sharded over replicas, if the model is not split yet, or if it is a plain module.
    """
    split = holding.split
    if split is None or not split.is_cut or split.is_sharded:
        return Team.here()
    return Team.of(split.groups.of(Axis.MP))


def directory(values: Mapping[str, Any], team: Team) -> dict[str, ValueOwner]:
    """Return which rank provides each value, by key; all ranks of the team have to call it.

    Args:
        values: Values on this rank, by key.
        team: Ranks that have the values.
    """
    facts = {key: _fact(value, team) for key, value in values.items()}
    found: dict[str, ValueOwner] = {}
    for rank, of_rank in enumerate(team.gather(facts)):
        for key, fact in of_rank.items():
            found.setdefault(key, ValueOwner(rank, fact))
    return found


def _fact(value: Any, team: Team) -> Fact:
    ranks: tuple[int, ...] = (team.in_world(team.rank),)
    if not isinstance(value, Tensor):
        return Fact(None, None, value, ranks)
    if isinstance(value, DTensor):
        ranks = ranks_of(value)
    return Fact(tuple(whole_shape_of(value)), value.dtype, None, ranks)


def whole(value: Any, found: ValueOwner, team: Team) -> Tensor | None:
    """Gather the shards of a tensor, and return the whole tensor on the CPU of its owner.

    All ranks that have a shard must call this function.

    Args:
        value: The tensor, or its shard, on this rank; None if this rank has neither.
        found: Owner of the tensor, and the ranks with its shards.
        team: Ranks that gather.

    Returns:
        The tensor on the owner; None on other ranks, and for a value that is no tensor.
    """
    if team.in_world(team.rank) not in found.fact.ranks or not isinstance(value, Tensor):
        return None
    full = joined(value).detach() if isinstance(value, DTensor) else value.detach()
    return full.cpu() if team.rank == found.owner else None


def gathered(values: Mapping[str, Any], team: Team, *, to_rank0: bool) -> Iterator[tuple[str, Any]]:
    """Yield the values of all ranks of a team, each with its key; all ranks have to iterate.

    A sharded tensor is yielded whole.

    Args:
        values: Values on this rank, by key.
        team: Ranks that have the values.
        to_rank0: True yields values on the team's first rank only. False yields values on every
            rank of the team.
    """
    for key, found in directory(values, team).items():
        if found.fact.shape is None:
            value = found.fact.content
        else:
            value = _moved(whole(values.get(key), found, team), found, team, to_rank0)
        if team.is_first or not to_rank0:
            yield key, value


def _moved(tensor: Tensor | None, found: ValueOwner, team: Team, to_rank0: bool) -> Tensor | None:
    """Send a tensor from its owner to rank 0 of the team, or to all ranks.

    Args:
        tensor: The tensor on its owner; None on other ranks.
        found: The owner, and the tensor's shape and type.
        team: Ranks that take part; all have to call this.
        to_rank0: True sends the tensor to rank 0 only.

    Returns:
        The tensor, on the owner and on the receivers. Other ranks must not use the result.
    """
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
    """Return the state dict of a whole model, on the CPU; all ranks of a replica have to call it.

    Other replicas need not call it. But if the model is not split, or was made with
    sharding="optimizer" or "full", all ranks of the world have to call it.

    Args:
        model: The result of `smp.parallelize`, or a plain module.
        to_rank0: True returns the state on rank 0 of the world only, and {} on other ranks.

    Returns:
        Values by their names in the user's model. All buffers are from the same replica.

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
    """Return True if a gathered tensor is in the model's own memory, so that it must be copied.

    Args:
        value: The gathered value.
        own: The model's value on this rank; None if only another rank has this value.
    """
    if not isinstance(value, Tensor) or not isinstance(own, Tensor) or isinstance(own, DTensor):
        return False
    return value.data_ptr() == own.data_ptr()
