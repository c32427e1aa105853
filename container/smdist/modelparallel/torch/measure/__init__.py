# SPDX-License-Identifier: Apache-2.0
"""Costs of the units of a model: measured on a device, or estimated for a device elsewhere.

    costs = measure(capture(model, example))                      seconds on this machine
    costs = estimate(capture(model, example), Device(...))        on another device

Both also work for a model on the meta device.

The backward pass is timed as a whole, and its first part also alone: part I, which computes the
gradients of the inputs. The rest of the time is that of part W, the gradients of the weights.

A tensor that is saved for the backward pass counts once, at the first node that saves it.
op_counter.py, account.py and parts.py describe what is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from sagemaker_dist.errors import require
from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph, Value
from smdist.modelparallel.torch.accelerator import (
    accelerator_of,
    current_device,
    is_accelerator,
    name_of,
    random_device_type,
)
from smdist.modelparallel.torch.capture import Captured, arguments_of
from smdist.modelparallel.torch.measure.estimated import Estimating
from smdist.modelparallel.torch.measure.measured import Measuring
from smdist.modelparallel.torch.measure.op_counter import check_speed
from smdist.modelparallel.torch.measure.parts import Parts
from smdist.modelparallel.torch.measure.slice_search import SliceSearch
from smdist.modelparallel.torch.program.program import (
    GradModes,
    Program,
    current_modes,
    entered,
)
from smdist.modelparallel.torch.program.pytree import flatten
from smdist.modelparallel.torch.tensor_splits import splits_sequences

__all__ = ["estimate", "measure", "with_slices"]


def measure(
    captured: Captured,
    *,
    device: torch.device | str | None = None,
    repeats: int = 5,
    budget_seconds: float = 60.0,
    title: str = "",
) -> Costs:
    """Measure the time and memory of each node of a recorded forward pass, on this machine.

    A node is a unit (a module that is not divided) or an operation between units. Nodes that cost
    the same are of one kind. The first node of each kind runs several times by itself, forward and
    backward. The result is the lower quartile of its times.

    The model is left unchanged: parameters, gradients, buffers, attributes and random states. Units
    on the meta device get random weights, one unit at a time.

    Args:
        captured: Recorded forward pass, with the model and its example batch.
        device: Device to measure on. Default: the model's own device. For a model on the CPU, the
            default is the accelerator that the example batch is on, if it is on one; for a model
            on the meta device, the accelerator if there is one, or else the CPU.
        repeats: Timed runs of each kind of node, after a first run that warms up and counts bytes.
        budget_seconds: Time after which each remaining kind of node is timed only once.
        title: Words at the beginning of progress lines.

    Returns:
        Seconds and bytes of one microbatch, by the node's name.

    Raises:
        OptionError: `repeats` is below 1, or a unit returns another result than it did when the
            forward pass was recorded.
    """
    require(
        repeats >= 1,
        what=f"repeats is {repeats!r}",
        why="at least one run has to be timed",
        hint="Pass an integer of at least 1",
        about="repeats",
    )
    place = _device(captured) if device is None else _numbered(torch.device(device))
    with _undisturbed(captured.program.base, place):
        parts = Parts(captured.program, captured.model, place)
        values = captured.program.bind(arguments_of(captured.example))
        measuring = Measuring(parts, values, repeats=repeats, seconds=budget_seconds, title=title)
        return Costs(nodes=measuring.costs(), source="measured", device=name_of(place))


def estimate(captured: Captured, device: Device) -> Costs:
    """Estimate the time and memory of each node of a recorded forward pass, for another device.

    A node is a unit (a module that is not divided) or an operation between units. The estimate is
    its number of floating-point operations and bytes, divided by the device's peak speeds.

    Args:
        captured: Recorded forward pass, with the model on any device.
        device: Device with its speeds; a speed of None counts as infinite.

    Returns:
        Seconds and bytes of one microbatch, by the node's name.

    Raises:
        OptionError: No speed of the device is known.
    """
    check_speed(device)
    place = _device(captured)
    with _undisturbed(captured.program.base, place):
        parts = Parts(captured.program, captured.model, place)
        nodes = Estimating(parts, device).costs()
        return Costs(nodes=nodes, source="estimated", device=device.name)


def with_slices(captured: Captured) -> Captured:
    """Return a recording that says of which values each rank has a slice of the sequence.

    A recording has whole values. If split layers of the model split sequences, too, the graph of
    the result has the bytes of slices, and its program their splits.

    Args:
        captured: Recorded forward pass, with the model as one rank has it.
    """
    if not splits_sequences(captured.model):
        return captured
    place = _device(captured)
    with _undisturbed(captured.program.base, place):
        splits = SliceSearch(Parts(captured.program, captured.model, place)).splits()
    program = replace(captured.program, splits=splits)
    return replace(captured, program=program, graph=_of_parts(captured.graph, program))


def _of_parts(graph: Graph, program: Program) -> Graph:
    """Return a graph with the bytes of the tensors that this rank has of its values."""

    def part(value: Value) -> Value:
        shape = program.part_facts[value.name].shape
        return replace(value, num_bytes=value.num_bytes * prod(shape) // max(1, prod(value.shape)))

    nodes = (replace(node, writes=tuple(map(part, node.writes))) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _device(captured: Captured) -> torch.device:
    """Return the device on which the model will be trained."""
    batch = flatten(arguments_of(captured.example))[0]
    tensors = [*captured.model.parameters(), *(each for each in batch if isinstance(each, Tensor))]
    found = accelerator_of(tensors)
    if found is None and any(parameter.is_meta for parameter in captured.model.parameters()):
        found = current_device()
    return torch.device("cpu") if found is None else found


def _numbered(device: torch.device) -> torch.device:
    """Return a device with its number: that of the current one, if the device has none."""
    if not is_accelerator(device) or ":" in str(device):
        return device
    return torch.device(device.type, torch.get_device_module(device).current_device())


@contextmanager
def _undisturbed(base: GradModes, device: torch.device) -> Iterator[None]:
    """Run the block in the modes of a recorded forward pass, and restore random states afterwards.

    Args:
        base: Gradient, inference and autocast modes of the recorded forward pass.
        device: Device whose random state is restored, besides that of the CPU.
    """
    devices = [device.index] if is_accelerator(device) else []
    kind = random_device_type()
    with (
        entered(base, current_modes()),
        torch.random.fork_rng(devices=devices, device_type=kind),
    ):
        torch.default_generator.manual_seed(0)
        yield
