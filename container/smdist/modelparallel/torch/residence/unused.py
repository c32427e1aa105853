# SPDX-License-Identifier: Apache-2.0
"""What no stage uses has a place all the same: with stage 0, so that no checkpoint loses it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.program import Held
from smdist.modelparallel.torch.residence.tensors import entries
from smdist.modelparallel.torch.stage import Level, StageModule


def keep_unused(captured: Captured, stages: Mapping[int, StageModule]) -> tuple[str, ...]:
    """Put parameters and persistent buffers that nothing reads into stage 0, where it is here.

    Call it before `release`, which lets go of what no stage holds.

    Returns:
        Their first names; the same on every rank.
    """
    found = dict(_unused(captured))
    if 0 in stages:
        for name in found:
            _put(stages[0], name, captured.model)
    return tuple(found)


def _unused(captured: Captured) -> Iterator[tuple[str, Tensor]]:
    program = captured.program
    units = {call.module for call in program.calls if call.is_unit}
    modules = [captured.model.get_submodule(unit) for unit in units]
    seen = {id(t) for module in modules for t in entries(module.modules())}
    read = {name for call in program.calls for name in call.held}
    read |= {output.name for output in program.outputs if isinstance(output, Held)}
    every = list(_lasting(captured.model))
    seen |= {id(tensor) for name, tensor in every if name in read}
    for name, tensor in every:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def _lasting(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What is in a state dict, by every name."""
    for prefix, module in model.named_modules():
        start = f"{prefix}." if prefix else ""
        for key, parameter in module._parameters.items():
            if parameter is not None:
                yield start + key, parameter
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                yield start + key, buffer


def _put(stage: nn.Module, name: str, model: nn.Module) -> None:
    *path, key = name.split(".")
    level = stage
    for step in path:
        level = level._modules.setdefault(step, Level())  # type: ignore[assignment]
    source = model.get_submodule(".".join(path))
    if key in source._parameters:
        level._parameters[key] = source._parameters[key]
    else:
        level.register_buffer(key, source._buffers[key])
