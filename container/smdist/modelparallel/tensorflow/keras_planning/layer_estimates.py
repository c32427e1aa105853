# SPDX-License-Identifier: Apache-2.0
"""Estimated costs of layers, from their shapes and the speed of a device."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import keras

from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.tensorflow.keras_capture.keras_graph import bytes_of
from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    variables_of,
)

# A CPU core, as an order of magnitude: only the ratio of layers to each other matters there.
_UNKNOWN: Final = Device(name="cpu", flops_per_second=2e10, bytes_per_second=5e9)
_LOSS_PASSES: Final = 2  # a loss reads the outputs, and writes as much, in each direction
_PASSES: Final = 2  # the backward pass of a product is two products of the same size


def estimate(program: LayerProgram, device: Device = _UNKNOWN) -> Costs:
    """Return costs that are computed from shapes; nothing is run, and no memory is needed.

    A matrix product or convolution takes the time of its operations or of its bytes, whichever is
    longer. Other layers take the time of their bytes.
    """
    nodes = {step.name: estimated(step, program, device) for step in program.steps}
    add_loss(nodes, program, device)
    return Costs(nodes=nodes, source="estimated", device=device.name)


def estimated(step: ProgramStep, program: LayerProgram, device: Device = _UNKNOWN) -> NodeCost:
    """Return the estimated cost of one step."""
    variables = variables_of(step)
    written = _bytes(step.writes, program)
    moved = _bytes(step.reads, program) + written + sum(_variable_bytes(each) for each in variables)
    flops = _flops(step, program, variables)
    forward = max(
        flops / (device.flops_per_second or 1e12), moved / (device.bytes_per_second or 1e11)
    )
    is_trained = any(each.trainable for each in variables)
    return NodeCost(
        forward_seconds=forward,
        input_gradient_seconds=forward,
        weight_gradient_seconds=forward * (_PASSES - 1) if is_trained else 0.0,
        saved_bytes=written,
    )


def add_loss(
    nodes: dict[str, NodeCost], program: LayerProgram, device: Device = _UNKNOWN, factor: float = 1
) -> None:
    """Add the estimated cost of the loss to that of the last layer, whose stage computes it.

    Args:
        nodes: Cost of each step, by name; that of the last step is replaced.
        program: Program of the model.
        device: Device to estimate for.
        factor: Time that the device takes, in proportion to the estimate.
    """
    moved = _LOSS_PASSES * _bytes(program.output_names, program)
    seconds = factor * moved / (device.bytes_per_second or 1e11)
    last = program.steps[-1].name
    nodes[last] = replace(
        nodes[last],
        forward_seconds=nodes[last].forward_seconds + seconds,
        input_gradient_seconds=nodes[last].input_gradient_seconds + seconds,
    )


def _bytes(names: Iterable[str], program: LayerProgram) -> int:
    return sum(bytes_of(program.specs[name]) for name in names)


def _variable_bytes(variable: Any) -> int:
    return int(math.prod(variable.shape)) * 4


def _flops(step: ProgramStep, program: LayerProgram, variables: Iterable[Any]) -> float:
    """Return the operations of products: each kernel is applied at each position of the output."""
    if isinstance(step.operation, keras.layers.Embedding) or not step.writes:
        return 0.0
    shape = program.specs[step.writes[0]].shape
    positions = math.prod(shape[:-1]) if shape else 1
    kernels = [math.prod(each.shape) for each in variables if len(each.shape) > 1]
    return float(2 * positions * sum(kernels))
