# SPDX-License-Identifier: Apache-2.0
"""Brings values of several ranks together, one at a time.

Each replica has all of a model, so it gathers for itself: the others need not take part, and SMP's
scripts let dp_rank 0 alone do it. Where replicas share values out (FSDP2), it takes all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.torch.checkpoint.holding import Holding, check_complete, hold
from smdist.modelparallel.torch.checkpoint.team import Team


@dataclass(frozen=True, slots=True)
class Fact:
    """What a rank says of a value that it has.

    Attributes:
        shape: None for what is no tensor.
        content: What is no tensor, itself.
        ranks: Those that share it out among them, as the world counts.
    """

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    content: Any
    ranks: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of the whole of a tensor."""
        if self.shape is None or self.dtype is None:
            return 0
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Found:
    """Where a value is: the first rank of a team that has it, and what that says of it."""

    owner: int
    fact: Fact


def team_of(holding: Holding) -> Team:
    """Who has all of a model together: the ranks of this replica, where replicas hold it alike.

    The world, where they share it out, and of a model that is not cut.
    """
    if not holding.is_cut or holding.split.is_sharded:
        return Team.here()
    return Team.of(holding.split.groups.of(Axis.MP))


def directory(values: Mapping[str, Any], team: Team) -> dict[str, Found]:
    """Where every value is, by key, in the order of ranks; collective."""
    facts = {key: _fact(value, team) for key, value in values.items()}
    found: dict[str, Found] = {}
    for rank, of_rank in enumerate(team.gather(facts)):
        for key, fact in of_rank.items():
            found.setdefault(key, Found(rank, fact))
    return found


def _fact(value: Any, team: Team) -> Fact:
    ranks = (team.in_world(team.rank),)
    if not isinstance(value, Tensor):
        return Fact(None, None, value, ranks)
    if isinstance(value, DTensor):
        ranks = tuple(value.device_mesh.mesh.flatten().tolist())
    return Fact(tuple(value.shape), value.dtype, None, ranks)


def whole(value: Any, found: Found, team: Team) -> Tensor | None:
    """A tensor on the CPU of its owner; its shards come together from the ranks that have them."""
    if team.in_world(team.rank) not in found.fact.ranks or not isinstance(value, Tensor):
        return None
    full = value.detach()
    if isinstance(full, DTensor):
        full = full.full_tensor()
    return full.cpu() if team.rank == found.owner else None


def gathered(values: Mapping[str, Any], team: Team, *, to_rank0: bool) -> Iterator[tuple[str, Any]]:
    """Every value, whole, on every rank of a team or on its first alone; collective there.

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


def _moved(tensor: Tensor | None, found: Found, team: Team, to_rank0: bool) -> Tensor | None:
    """Bytes travel, whatever the type."""
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
    """The state of a whole model under its own names, on the CPU.

    Collective over the ranks of one replica, once the model is cut: all replicas may call it, or
    one, such as that of dp_rank 0. With sharding="optimizer" or "full", and before the cut, it is
    collective over all ranks: where only some call it, these wait for the others.

    Args:
        model: What `smp.parallelize` returned, or a plain module.
        to_rank0: Only rank 0 of the world gets it; elsewhere the dictionary is empty.

    Returns:
        Values by name; buffers are those of this replica, and of the first where it takes all.

    Raises:
        CheckpointError: Something of the model is on no rank.
    """
    holding = hold(model)
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
    """Whether it is the model's own memory: what is gathered is all of one moment."""
    if not isinstance(value, Tensor) or not isinstance(own, Tensor) or isinstance(own, DTensor):
        return False
    return value.data_ptr() == own.data_ptr()
