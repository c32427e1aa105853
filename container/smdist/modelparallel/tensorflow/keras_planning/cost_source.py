# SPDX-License-Identifier: Apache-2.0
"""Choice between measured and estimated costs of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sagemaker_dist.errors import OptionError, closest
from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.tensorflow.keras_capture import LayerProgram
from smdist.modelparallel.tensorflow.keras_planning.layer_estimates import estimate
from smdist.modelparallel.tensorflow.keras_planning.layer_times import measure

# costs_of(program, tick): costs of a program; tick() is called before each measurement
CostsOf = Callable[[LayerProgram, Callable[[], None]], Costs]
SOURCES: Final = ("auto", "measure", "estimate")


def costs_by(source: str, device: Device | None = None) -> CostsOf:
    """Return a function that measures or estimates the costs of a program.

    Args:
        source: "measure", "estimate", or "auto", which measures.
        device: Device to estimate for. Default: one core of a CPU.

    Raises:
        OptionError: The source is none of these.
    """
    if source not in SOURCES:
        raise OptionError(
            f"costs is {source!r}",
            "costs of layers are measured or estimated",
            closest(str(source), SOURCES),
            about="costs",
            kind="unknown",
        )
    if source != "estimate":
        return measure
    if device is None or device.flops_per_second is None:
        return lambda program, _: estimate(program)
    return lambda program, _: estimate(program, device)
