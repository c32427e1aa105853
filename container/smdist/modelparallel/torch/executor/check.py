# SPDX-License-Identifier: Apache-2.0
"""What a stage passes on must be what the others were told to expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.executor.wiring import Wire
from smdist.modelparallel.torch.program import Program


def check_values(
    values: Mapping[str, Any], wires: Iterable[Wire], program: Program, *, keeps: bool
) -> None:
    """Raise for a value of another shape or type than was captured.

    Args:
        keeps: Whether gradients will come back.

    Raises:
        OptionError: Names the module that made it.
    """
    for wire in wires:
        value, facts = values[wire.edge.value], wire.facts
        if not isinstance(value, Tensor):
            raise _unlike(wire, program, f"is {type(value).__name__}, not a tensor")
        if value.shape != facts.shape or value.dtype != facts.dtype:
            found = f"{value.dtype}{tuple(value.shape)}"
            raise _unlike(wire, program, f"is {found}, not {facts.dtype}{facts.shape}")
        if keeps and value.requires_grad and not wire.edge.has_gradient:
            raise _unlike(wire, program, "has a gradient, and had none when it was captured")


def _unlike(wire: Wire, program: Program, what: str) -> OptionError:
    name = wire.edge.value
    makers = [call.module for call in program.calls if name in call.writes]
    maker = f" of {makers[0]!r}" if makers and makers[0] else ""
    return OptionError(
        f"{name!r}{maker} {what}",
        f"stage {wire.edge.target} was made for what was captured",
        "Capture the model as it is now, or keep the modules that read this value in the same unit",
    )
