# SPDX-License-Identifier: Apache-2.0
"""Parts of tensors that are split over the ranks of tensor parallelism, as a checkpoint sees them.

In a checkpoint's code, a part is a DTensor with the shape of the whole tensor, as a shard of FSDP2
is. So it is gathered, written in shards and read in any other layout like such a shard. A part of
several sections (fused projections) is no range of the whole tensor, so it is written and read as a
whole.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from smdist.modelparallel.torch.tensor_splits import GroupPeers, TensorSplit, split_of


def exposed(value: Any, parameter: Any) -> Any:
    """Return a value of a parameter as a DTensor, if the parameter is split; else the value.

    Args:
        value: The parameter's value, or a piece of its optimizer state, on this rank.
        parameter: The parameter; None for a buffer.
    """
    split = None if parameter is None else split_of(parameter)
    if split is None or not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return _carrier(value.detach(), split)


def _carrier(part: Tensor, split: TensorSplit) -> DTensor:
    assert isinstance(split.peers, GroupPeers)
    mesh = DeviceMesh.from_group(split.peers.group, part.device.type)
    count, dim = len(split.sections), split.dim
    placement = Shard(dim) if count == 1 else _StridedShard(dim, split_factor=count)
    shape = split.whole_shape(part)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(part, mesh, [placement], run_check=False, shape=shape, stride=stride)


def is_in_sections(value: Any) -> bool:
    """Return True for a part of several sections, which is no range of the whole tensor."""
    if not isinstance(value, DTensor):
        return False
    return any(isinstance(each, _StridedShard) for each in value.placements)


def joined(value: DTensor) -> Tensor:
    """Gather a whole tensor from its shards; all ranks that have a shard must call this."""
    if not is_in_sections(value):
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


def empty_like(value: Any) -> Any:
    """Return an empty tensor to read a value into: on the CPU, or sharded if the value is sharded.

    A part of several sections is read as a whole. The result is None for a value that is no tensor.
    """
    if is_in_sections(value):
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
        This rank's part; `value` itself if the parameter is whole, or sharded by FSDP2.
    """
    split = None if parameter is None else split_of(parameter)
    if split is None or not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor):
        return value.to_local()
    return split.part(value) if split.fits(value, parameter) else value
