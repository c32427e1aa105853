# SPDX-License-Identifier: Apache-2.0
"""Split of a model in place, as a plan of tensor parallelism says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.materialization.skeleton import like, replace
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import (
    Attribute,
    ModuleSplit,
    Region,
    TensorPlan,
)
from smdist.modelparallel.torch.tensor_splits import (
    Peers,
    RegionEntry,
    Role,
    SplitDraw,
    TensorSplit,
    mark,
    turn,
    turn_dropout,
)


def split_model(model: nn.Module, plan: TensorPlan, peers: Peers) -> None:
    """Split a model in place: this rank keeps its parts of the split parameters.

    The parts are new parameters, in memory of their own.

    Args:
        model: The whole model; tensors may be on the meta device.
        plan: Plan for this model.
        peers: Ranks over which tensors are split.
    """
    for region in plan.regions:
        split_region(model, region, peers)


def split_region(block: nn.Module, region: Region, peers: Peers) -> None:
    """Split one region in place.

    Args:
        block: Module around the region.
        region: The region, with names in `block`.
        peers: Ranks over which tensors are split.
    """
    split_modules(block, region.modules, peers, is_sliced=region.is_sliced)
    set_attributes(block, region.attributes)
    for each in region.dropouts:
        draw = SplitDraw(each.dim, peers.size, peers.rank)
        turn_dropout(block.get_submodule(each.name), draw)


def split_modules(
    model: nn.Module, splits: Sequence[ModuleSplit], peers: Peers, *, is_sliced: bool = False
) -> None:
    """Split the modules of one region in place.

    Args:
        model: Module around them.
        splits: Splits of the modules, with their names in `model`.
        peers: Ranks over which tensors are split.
        is_sliced: True if the region's sum over ranks is split by positions of the sequence.
    """
    is_inside = any(each.role is Role.BORDER for each in splits)
    entry, new = RegionEntry(peers, is_inside=is_inside, is_sliced=is_sliced), {}
    for each in splits:
        module = model.get_submodule(each.name)
        for name, dim in each.dims.items():
            parameter = module._parameters[name]
            if parameter is not None and id(parameter) not in new:
                split = TensorSplit(
                    dim=dim, sections=each.sections, degree=peers.size, rank=peers.rank,
                    peers=peers,
                )  # fmt: skip
                new[id(parameter)] = (parameter, _part(parameter, split))
    replace(model.modules(), {key: part for key, (_, part) in new.items()})
    for each in splits:
        turn(model.get_submodule(each.name), each.role, entry, each.values)
    _leave_fast_paths(model, [each.name for each in splits])


def _leave_fast_paths(model: nn.Module, split: Sequence[str]) -> None:
    """Keep encoders of torch from reading weights of split modules in fused functions.

    In evaluation, they pass the weights of attention and linear layers to one function, without a
    call of these modules. An activation that this function does not know prevents it.
    """
    for name, module in model.named_modules():
        if not any(each == name or each.startswith(f"{name}." if name else "") for each in split):
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False


def set_attributes(model: nn.Module, attributes: Iterable[Attribute]) -> None:
    """Set the attributes of modules, such as numbers of heads, to their values on one rank."""
    for each in attributes:
        setattr(model.get_submodule(each.module), each.name, each.part)


def _part(parameter: nn.Parameter, split: TensorSplit) -> Tensor:
    """Return this rank's part of a parameter, which carries its split."""
    with torch.no_grad():
        made = like(parameter, split.part(parameter.detach()))
        if parameter.grad is not None:
            made.grad = split.part(parameter.grad)
    mark(made, split)
    return made
