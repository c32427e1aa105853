# SPDX-License-Identifier: Apache-2.0
"""Release of the memory of a model's tensors that no stage of this rank uses.

A tensor that no stage of any rank uses stays on the rank of stage 0 (`keep_unused`). Examples are a
parameter that the forward pass does not read, and a module that another phase of training calls.
They belong to the model's state, so every checkpoint contains them.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping

from torch import Tensor, nn

from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.torch.accelerator import empty_cache
from smdist.modelparallel.torch.materialization.skeleton import entries, hollow, replace
from smdist.modelparallel.torch.materialization.stage_module import StageModule, put_tensor
from smdist.modelparallel.torch.program.program import ModelTensor, Program


def release(model: nn.Module, stages: Mapping[int, nn.Module]) -> int:
    """Free the parameters and buffers of the user's model that are in no stage of this rank.

    Tensors without values replace them, with the same names and shapes. Tied parameters stay tied.
    Memory is freed only if no other object refers to the old tensors. So first give the optimizer,
    if there is one, its new parameters.

    Args:
        model: The whole model, whose modules the stages share.
        stages: The stages of this rank, by number.

    Returns:
        Number of bytes of the model that were released.
    """
    kept = {id(tensor) for stage in stages.values() for tensor in entries(stage.modules())}
    gone = {id(t): t for t in entries(model.modules()) if id(t) not in kept and not t.is_meta}
    for tensor in gone.values():
        tensor.grad = None
    num_bytes = sum(_storages(gone.values()).values())
    replace(model.modules(), {key: hollow(tensor) for key, tensor in gone.items()})
    gone.clear()
    gc.collect()  # autograd and hooks make reference cycles
    empty_cache()
    return num_bytes


def _storages(tensors: object) -> dict[int, int]:
    """Return the size in bytes of each storage (block of memory) that these tensors use.

    The key is a number that identifies the storage.
    """
    assert not isinstance(tensors, Tensor)
    return {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in tensors  # type: ignore[attr-defined]
    }


def keep_unused(
    model: nn.Module, program: Program, placement: Placement, stages: Mapping[int, StageModule]
) -> None:
    """Add the parameters and buffers that no stage uses to stage 0.

    On ranks without stage 0, nothing is changed.

    Args:
        model: The whole model, before `release` frees a part of it.
        program: Recorded forward pass of the model.
        placement: The stage of every call.
        stages: The stages of this rank, by number.
    """
    if 0 not in stages:
        return
    used = _used(model, program, placement)
    for name, tensor in _tensors(model):
        if id(tensor) not in used:
            put_tensor(stages[0], name, model)


def _used(model: nn.Module, program: Program, placement: Placement) -> set[int]:
    """Return the ids of the model's parameters and buffers that a stage of any rank uses."""
    calls = [call for call in program.calls if placement.stages[call.name]]
    units = {call.module for call in calls if call.is_unit}
    found = {id(tensor) for name in units for _, tensor in _tensors(model.get_submodule(name))}
    held = {name for call in calls for name in call.held}
    held |= {output.name for output in program.outputs if isinstance(output, ModelTensor)}
    return found | {id(tensor) for name, tensor in _tensors(model) if name in held}


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
