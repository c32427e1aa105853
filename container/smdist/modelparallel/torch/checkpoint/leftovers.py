# SPDX-License-Identifier: Apache-2.0
"""What no stage uses is part of the model all the same: it stays with the first stage.

A parameter that the forward pass does not touch, a module that is called in another phase of
training: they are in the model's state, so they are in every checkpoint of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.torch.program import Held, Program
from smdist.modelparallel.torch.stage import StageModule, put_tensor


def keep_unused(
    model: nn.Module, program: Program, placement: Placement, stages: Mapping[int, StageModule]
) -> None:
    """Put parameters and buffers that no stage uses into stage 0, where a rank has it.

    Args:
        model: The whole model; call it before anything is let go.
        stages: Those of this rank.
    """
    if 0 not in stages:
        return
    used = _used(model, program, placement)
    for name, tensor in _tensors(model):
        if id(tensor) not in used:
            put_tensor(stages[0], name, model)


def _used(model: nn.Module, program: Program, placement: Placement) -> set[int]:
    """Ids of the tensors that some stage has."""
    calls = [call for call in program.calls if placement.stages[call.name]]
    units = {call.module for call in calls if call.is_unit}
    found = {id(tensor) for name in units for _, tensor in _tensors(model.get_submodule(name))}
    held = {name for call in calls for name in call.held}
    held |= {output.name for output in program.outputs if isinstance(output, Held)}
    return found | {id(tensor) for name, tensor in _tensors(model) if name in held}


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
