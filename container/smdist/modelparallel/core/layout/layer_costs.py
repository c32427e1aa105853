# SPDX-License-Identifier: Apache-2.0
"""Costs of one layer on one rank for one microbatch, with its options of memory and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.layout.communication import all_reduce_seconds, group
from smdist.modelparallel.core.layout.layer_model import Layer
from smdist.modelparallel.core.layout.machine_speed import Machine

COPIES_IN_TRANSIT: Final = 4  # layers whose activations are on the device at once, with offload
_BACKWARD = 2.0  # gradients of inputs and of weights each take as many operations as the forward


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """Cost of one layer on one rank for one microbatch.

    Attributes:
        forward_seconds: Computation of the forward pass.
        backward_seconds: Computation of the backward pass, without recomputation.
        again_seconds: Computation of activations for a second time, because of checkpointing.
        message_seconds: All-reduces of tensor parallelism in forward and backward pass.
        again_message_seconds: All-reduces for a second time, because of checkpointing.
        copy_seconds: Copies of activations to the host and back.
        saved_bytes: Bytes of activations kept on the device for the backward pass.
        workspace_bytes: Bytes while the layer runs.
        num_parameters: Parameter elements on this rank.
    """

    forward_seconds: float
    backward_seconds: float
    again_seconds: float
    message_seconds: float
    again_message_seconds: float
    copy_seconds: float
    saved_bytes: float
    workspace_bytes: float
    num_parameters: float

    @property
    def ahead_seconds(self) -> float:
        """Seconds of the forward pass with its all-reduces."""
        return self.forward_seconds + self.message_seconds / 2

    @property
    def behind_seconds(self) -> float:
        """Seconds of the backward pass with its all-reduces and what is computed again."""
        behind = self.backward_seconds + self.again_seconds
        return behind + (self.message_seconds / 2 + self.again_message_seconds)

    @property
    def seconds(self) -> float:
        """Seconds of both passes, without messages of shards."""
        computed = self.forward_seconds + self.backward_seconds + self.again_seconds
        spoken = self.message_seconds + self.again_message_seconds
        return computed + spoken + max(0.0, self.copy_seconds - computed)


def layer_cost(
    machine: Machine, layer: Layer, tensor: int, microbatch: int, checkpointing: str, offload: bool
) -> LayerCost:
    """Return the cost of a layer.

    Args:
        machine: Machine that runs the layer.
        layer: The layer.
        tensor: Ranks that split the layer.
        microbatch: Samples of the microbatch.
        checkpointing: "none", "every_8th", "selective" (every second layer) or "full".
        offload: True if activations are kept in the host's memory.
    """
    part = layer.tensor_fraction / tensor + 1 - layer.tensor_fraction
    forward = _forward(machine, layer, tensor, microbatch, part)
    known = (layer.backward_seconds * microbatch + layer.fixed_backward_seconds) * part
    ahead = (layer.forward_seconds * microbatch + layer.fixed_forward_seconds) * part
    backward = known + _BACKWARD * (forward - ahead)
    ahead_messages, behind_messages = _messages(machine, layer, tensor, microbatch)
    half = {"none": 0.0, "every_8th": 0.25, "selective": 1.0, "full": 0.0}[checkpointing]
    again = 1.0 if checkpointing == "full" else half * layer.selective_fraction
    whole = (layer.saved_bytes * microbatch + layer.fixed_saved_bytes) * part
    selected = (layer.selective_bytes * microbatch + layer.fixed_saved_bytes) * part
    selected = min(whole, selected)
    kept = whole - half * (whole - selected)
    if checkpointing == "full":
        kept = min(whole, layer.boundary_bytes * microbatch)
    if checkpointing == "full" and layer.selective_fraction == 0:
        again, kept = 0.0, whole  # a layer that is not worth a checkpoint
    copied = 2 * kept / machine.host_bytes_per_second if offload else 0.0
    recomputed = whole - kept if checkpointing == "full" else 0.0
    workspace = (layer.workspace_bytes * microbatch + layer.fixed_workspace_bytes) * part
    workspace += recomputed
    return LayerCost(
        forward_seconds=forward,
        backward_seconds=backward,
        again_seconds=again * forward,
        message_seconds=ahead_messages + behind_messages,
        again_message_seconds=ahead_messages if again == 1.0 else 0.0,
        copy_seconds=copied,
        saved_bytes=0.0 if offload else kept,
        workspace_bytes=workspace + (COPIES_IN_TRANSIT * kept if offload else 0.0),
        num_parameters=layer.num_parameters * part,
    )


def _forward(machine: Machine, layer: Layer, tensor: int, microbatch: int, part: float) -> float:
    """Return the seconds of a layer's forward pass; `part` is the fraction on this rank."""
    size = layer.product_size / (tensor if layer.tensor_fraction else 1)
    peak = machine.flops_per_second
    products = layer.forward_flops * microbatch * part / (peak * machine.product_efficiency(size))
    attention = layer.attention_flops * microbatch * part / (peak * machine.attention_efficiency)
    moved = layer.moved_bytes * microbatch * part / (machine.bytes_per_second * machine.memory)
    known = (layer.forward_seconds * microbatch + layer.fixed_forward_seconds) * part
    return max(products + attention + moved + known, machine.overhead_seconds)


def _messages(machine: Machine, layer: Layer, tensor: int, microbatch: int) -> tuple[float, float]:
    """Return the seconds of the all-reduces of tensor parallelism in the two passes of a layer."""
    if tensor == 1:
        return 0.0, 0.0
    if layer.tensor_fraction:
        sizes = (layer.boundary_bytes,) * layer.tensor_messages
        ahead = behind = message_seconds(machine, sizes, tensor, microbatch)
        return ahead, behind
    ahead = message_seconds(machine, layer.forward_messages, tensor, microbatch)
    return ahead, message_seconds(machine, layer.backward_messages, tensor, microbatch)


def message_seconds(
    machine: Machine, sizes: Sequence[float], tensor: int, microbatch: int
) -> float:
    """Return the seconds of some all-reduces between the ranks that split a layer.

    Args:
        machine: Machine that runs the layer.
        sizes: Bytes of each all-reduce for one sample.
        tensor: Ranks that split the layer.
        microbatch: Samples of the microbatch.
    """
    ranks = group(machine, tensor, 1)
    return sum(all_reduce_seconds(machine, each * microbatch, ranks) for each in sizes)
