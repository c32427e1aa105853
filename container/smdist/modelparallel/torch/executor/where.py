# SPDX-License-Identifier: Apache-2.0
"""Which module an exception comes from."""

from __future__ import annotations

from typing import Final

from torch import nn

from smdist.modelparallel.torch.stage import StageModule

_AROUND: Final = "code around the model"


def module_of(error: BaseException, stage: StageModule | None, *, is_forward: bool = True) -> str:
    """The unit that ran, or the module whose forward function did; words where it was neither."""
    if stage is None:
        return "the step"
    if stage.running is not None:
        return stage.running.module or stage.running.name
    return _in_traceback(error, stage) or (_AROUND if is_forward else _between(stage))


def _between(stage: StageModule) -> str:
    """What the backward pass of a stage is of, where it is not in a unit."""
    units = stage.route.units
    return f"code around {units[0]} to {units[-1]}" if units else _AROUND


def _in_traceback(error: BaseException, stage: StageModule) -> str:
    """The unit that a function on the stack belongs to: in a backward pass, one that runs again."""
    units = {id(stage.unit(name)): name for name in stage.route.units}
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in units:
            return units[id(module)]
        trace = trace.tb_next
    return ""
