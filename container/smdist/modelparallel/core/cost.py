# SPDX-License-Identifier: Apache-2.0
"""Costs of a model's parts: seconds and bytes for one microbatch on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smdist.modelparallel.core.graph import Parameter
from smdist.modelparallel.core.quantities import require_amount

_LEAST_SPEED = 1e-9  # bytes per second; a lower value is refused as a mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """Cost of one node of the graph, or of several nodes together, for one microbatch.

    Attributes:
        forward_seconds: Time of the forward pass (F).
        input_gradient_seconds: Time to compute the gradients of the inputs (I), the part of the
            backward pass for which the previous stage waits.
        weight_gradient_seconds: Time to compute the gradients of the weights (W), the rest of the
            backward pass. The whole backward pass is B = I + W.
        saved_bytes: Bytes of activations kept from the forward to the backward pass.
        workspace_bytes: Largest number of additional bytes that are needed only while a pass runs.
        keeps: Names of the tensors in the graph that the node keeps for the backward pass. If
            several nodes keep the same tensor, only `saved_bytes` of the node that runs first
            includes the bytes of this tensor. Empty in the cost of several nodes together.
    """

    forward_seconds: float = 0.0
    input_gradient_seconds: float = 0.0
    weight_gradient_seconds: float = 0.0
    saved_bytes: int = 0
    workspace_bytes: int = 0
    keeps: tuple[str, ...] = ()

    @property
    def backward_seconds(self) -> float:
        """Seconds of the whole backward pass: gradients of the inputs and of the weights."""
        return self.input_gradient_seconds + self.weight_gradient_seconds

    @property
    def seconds(self) -> float:
        """Time of the forward and the backward pass together, in seconds."""
        return self.forward_seconds + self.backward_seconds

    def __add__(self, other: NodeCost) -> NodeCost:
        """Return the cost of two nodes: sums of times and saved bytes, and the larger workspace."""
        return NodeCost(
            forward_seconds=self.forward_seconds + other.forward_seconds,
            input_gradient_seconds=self.input_gradient_seconds + other.input_gradient_seconds,
            weight_gradient_seconds=self.weight_gradient_seconds + other.weight_gradient_seconds,
            saved_bytes=self.saved_bytes + other.saved_bytes,
            workspace_bytes=max(self.workspace_bytes, other.workspace_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Costs of all nodes of a graph.

    Attributes:
        nodes: Cost by the node's name; a node that is missing costs nothing.
        source: "measured" if the costs were measured on `device`; "estimated" if they were computed
            from the model's operations and bytes, and the speed of this device.
        device: Name of the device, shown in reports: "cpu", "NVIDIA A100".
    """

    nodes: Mapping[str, NodeCost]
    source: str
    device: str

    def of(self, name: str) -> NodeCost:
        """Return the cost of the node with this name; 0 for a node without an entry in `nodes`."""
        return self.nodes.get(name, NodeCost())


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Memory of a trained parameter with its gradient and optimizer state, in bytes per element.

    The defaults are for Adam in fp32: 4 bytes of weight, 4 of gradient and 8 of optimizer state.
    Adam in bf16 with fp32 master weights needs 16 bytes, too: 2 of weight, 2 of gradient and 12 of
    optimizer state. A frozen parameter needs only the bytes of its weight.

    Attributes:
        weight: Bytes of the weight.
        gradient: Bytes of the gradient, in memory and in the all-reduce over replicas: 2 if
            gradients are summed in bf16.
        optimizer: Bytes of the optimizer's state.

    Raises:
        OptionError: A value is not a number from 0 to 1,000,000.
    """

    weight: float = 4.0
    gradient: float = 4.0
    optimizer: float = 8.0

    def __post_init__(self) -> None:
        why = "it is a number of bytes for each element of a parameter"
        for name in ("weight", "gradient", "optimizer"):
            require_amount(
                f"{name} of the state", getattr(self, name), why=why, most=1e6, about=name
            )

    def of(self, parameter: Parameter) -> int:
        """Return the bytes of one parameter in memory: weight, gradient and optimizer state.

        A frozen parameter needs the bytes of its weight only.
        """
        if not parameter.is_trained:
            return parameter.num_bytes
        return round(parameter.num_elements * (self.weight + self.gradient + self.optimizer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Link between two ranks: a message of n bytes takes latency + n / bandwidth seconds.

    By default, messages take no time.

    Raises:
        OptionError: The latency is negative or infinite, or the bandwidth is not above 0.
    """

    latency_seconds: float = 0.0
    bytes_per_second: float = float("inf")

    def __post_init__(self) -> None:
        latency, bandwidth = self.latency_seconds, self.bytes_per_second
        name, why = "latency_seconds of a link", "it is the time that every message takes at least"
        require_amount(name, latency, why=why, most=1e6, about="latency_seconds")
        name, why = "bytes_per_second of a link", "it is the speed at which messages are sent"
        require_amount(name, bandwidth, why=why, least=_LEAST_SPEED, about="bytes_per_second")

    def seconds(self, num_bytes: int) -> float:
        """Return the seconds that a message of `num_bytes` takes."""
        return self.latency_seconds + num_bytes / self.bytes_per_second
