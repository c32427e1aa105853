# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors that are split over the ranks of tensor parallelism, as a checkpoint sees them.

In a checkpoint's code, a part is a DTensor with the shape of the whole tensor, as a shard of FSDP2
is. So it is gathered, written in shards and read in any other layout like such a shard. A part of
several sections (fused projections) is no range of the whole tensor, so it is written and read as a
whole. A part that FSDP2 has sharded is a DTensor of the part's shape that carries its split; it is
gathered from its shards before it is written.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from smdist.modelparallel.torch.tensor_splits import GroupPeers, TensorSplit, mark, split_of


def exposed(value: Any, parameter: Any) -> Any:
    """Return a value of a parameter as a DTensor, if the parameter is split; else the value.

    If the parameter is sharded, too, the result is the sharded value, which carries the split.

    Args:
        value: The parameter's value, or a piece of its optimizer state, on this rank.
        parameter: The parameter; None for a buffer.
    """
    split = None if parameter is None else split_of(parameter)
    if split is None or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    if not isinstance(value, DTensor):
        return _carrier(value.detach(), split)
    shard = value.detach()
    mark(shard, split)
    return shard


def _carrier(part: Tensor, split: TensorSplit) -> DTensor:
    assert isinstance(split.peers, GroupPeers)
    mesh = DeviceMesh.from_group(split.peers.group, part.device.type)
    count, dim = len(split.sections), split.dim
    placement = Shard(dim) if count == 1 else _StridedShard(dim, split_factor=count)
    shape = split.whole_shape(part)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, mesh, [placement], run_check=False, shape=shape, stride=stride)


def writable(value: Any) -> Any:
    """Return a value as it is written to a partial checkpoint; all ranks that have it call this.

    Parts of several sections become whole tensors, and shards of other parts these parts. Any other
    value stays as it is.
    """
    split = _split_of_shard(value)
    if split is not None and split.is_contiguous:
        return _carrier(value.full_tensor(), split)
    return joined(value) if split is not None or _is_in_sections(value) else value


def ranks_of(value: DTensor) -> tuple[int, ...]:
    """Return the ranks of the world that have the shards of a whole tensor."""
    ranks: list[int] = value.device_mesh.mesh.flatten().tolist()
    split = _split_of_shard(value)
    if split is None:
        return tuple(ranks)
    assert isinstance(split.peers, GroupPeers)
    peers = dist.get_process_group_ranks(split.peers.group)
    here = dist.get_rank()  # ranks are a grid: each peer's shards are as far apart as these
    return tuple(sorted(rank + peer - here for rank in ranks for peer in peers))


def joined(value: DTensor) -> Tensor:
    """Gather a whole tensor from its shards; all ranks that have a shard must call this."""
    split = _split_of_shard(value)
    if split is not None:
        assert split.peers is not None
        return split.joined(split.peers.all_gather(value.full_tensor().contiguous()))
    if not _is_in_sections(value):
        return value.full_tensor()
    (placement,) = value.placements
    assert isinstance(placement, _StridedShard)
    group, part = value.device_mesh.get_group(), value.to_local().contiguous()
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part, group=group)
    count, dim = placement.split_factor, placement.dim
    sections = (value.shape[dim] // count,) * count
    split = TensorSplit(dim=dim, sections=sections, degree=group.size(), rank=group.rank())
    return split.joined(parts)


def _is_in_sections(value: Any) -> bool:
    """Return True for a part of several sections, which is no range of the whole tensor."""
    if not isinstance(value, DTensor):
        return False
    return any(isinstance(each, _StridedShard) for each in value.placements)


def _split_of_shard(value: Any) -> TensorSplit | None:
    """Return the split of the part of which `value` is a shard; None for any other value."""
    return split_of(value) if isinstance(value, DTensor) else None


def empty_like(value: Any) -> Any:
    """Return an empty tensor to read a value into: on the CPU, or sharded if the value is sharded.

    A part of several sections is read as a whole, and a shard of another part as that part. The
    result is None for a value that is no tensor.
    """
    split = _split_of_shard(value)
    if split is not None:
        return target_for(value, split.whole_shape(value), value.dtype)
    if _is_in_sections(value):
        return torch.empty(value.shape, dtype=value.dtype)
    if isinstance(value, DTensor):
        return torch.empty_like(value)
    return torch.empty_like(value, device="cpu") if isinstance(value, Tensor) else None


def target_for(parameter: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
    """Return an empty tensor to read state of a split parameter into; None if it is not split.

    Args:
        parameter: A parameter.
        shape, dtype: Shape and type of the value in the checkpoint.
    """
    split = split_of(parameter)
    if split is None or shape != split.whole_shape(parameter):
        return None
    part = torch.empty(parameter.shape, dtype=dtype)
    return part.new_empty(shape) if not split.is_contiguous else _carrier(part, split)


def part_for(value: Any, parameter: Any) -> Any:
    """Return this rank's part of a value that was read for a split parameter.

    Args:
        value: Whole tensor, or the result of `exposed`, or another object.
        parameter: The parameter; None for a buffer.

    Returns:
        This rank's part, and if FSDP2 has sharded the parameter, this rank's shard of the part;
        `value` itself if the parameter is not split.
    """
    split = None if parameter is None else split_of(parameter)
    if split is None or not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor):
        if value.shape == parameter.shape:  # a shard of the part already
            return value
        part = value.to_local()
    elif split.fits(value, parameter):
        part = split.part(value)
    else:
        return value
    return sharded(part, parameter)


def sharded(part: Tensor, parameter: Tensor) -> Tensor:
    """Return this rank's shard of a part, if FSDP2 has sharded the parameter; else the part.

    No message is sent: every rank has the part.
    """
    if not isinstance(parameter, DTensor) or isinstance(part, DTensor):
        return part
    local = part.to(parameter.device)
    found: Tensor = distribute_tensor(
        local, parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    return found
