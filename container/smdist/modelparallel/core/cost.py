# SPDX-License-Identifier: Apache-2.0
"""Costs of parts of a model: seconds and bytes for one microbatch on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smdist.modelparallel.core.graph import Parameter
from smdist.modelparallel.core.quantities import require_amount

_LEAST_SPEED = 1e-9  # bytes per second; a lower value is taken for a mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """Cost of one node, or of several nodes together, for one microbatch.

    Attributes:
        forward_seconds: F, the time of the forward pass.
        input_gradient_seconds: I, the part of the backward pass that the previous stage waits for.
        weight_gradient_seconds: W, the rest of the backward pass. The whole backward pass is
            B = I + W.
        saved_bytes: Bytes kept from the forward to the backward pass, without parameters.
        workspace_bytes: Extra bytes at the peak of either pass, beyond the bytes that are kept.
        keeps: Names of the graph's values that one node keeps. If several nodes keep one value, its
            bytes count in `saved_bytes` of the first node only. A sum of nodes has no names.
    """

    forward_seconds: float = 0.0
    input_gradient_seconds: float = 0.0
    weight_gradient_seconds: float = 0.0
    saved_bytes: int = 0
    workspace_bytes: int = 0
    keeps: tuple[str, ...] = ()

    @property
    def backward_seconds(self) -> float:
        """Time of the whole backward pass: B = I + W."""
        return self.input_gradient_seconds + self.weight_gradient_seconds

    @property
    def seconds(self) -> float:
        """Time of both passes: F + B."""
        return self.forward_seconds + self.backward_seconds

    def __add__(self, other: NodeCost) -> NodeCost:
        """Add the cost of a later node: times and saved bytes add up, workspaces do not."""
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
        source: "measured" on `device`, or "estimated" for it from operations and bytes.
        device: Name of the device, shown in reports: "cpu", "NVIDIA A100".
    """

    nodes: Mapping[str, NodeCost]
    source: str
    device: str

    def of(self, name: str) -> NodeCost:
        """Return the cost of one node."""
        return self.nodes.get(name, NodeCost())


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Memory that a trained parameter occupies all the time, in bytes per element.

    The defaults are for Adam in fp32: 16 bytes. bf16 with fp32 master weights needs 16 bytes as
    well (2 + 2 + 12). A frozen parameter occupies only its own bytes.

    Attributes:
        weight: Bytes of the weight.
        gradient: Bytes of the gradient. Each element also sends as many bytes when gradients are
            summed over replicas, so pass 2 if they are summed in bf16.
        optimizer: Bytes of the optimizer's state.

    Raises:
        OptionError: A value is not a number from 0 to 1,000,000.
    """

    weight: float = 4.0
    gradient: float = 4.0
    optimizer: float = 8.0

    def __post_init__(self) -> None:
        why = "it is in bytes an element of a parameter"
        for name in ("weight", "gradient", "optimizer"):
            require_amount(f"{name} of the state", getattr(self, name), why=why, most=1e6)

    def of(self, parameter: Parameter) -> int:
        """Return the bytes of weight, gradient and optimizer state of one parameter."""
        if not parameter.is_trained:
            return parameter.num_bytes
        return round(parameter.num_elements * (self.weight + self.gradient + self.optimizer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Link between two ranks: a message of n bytes takes latency + n / bandwidth.

    Raises:
        OptionError: The latency is negative or infinite, or the bandwidth is not above 0.
    """

    latency_seconds: float = 0.0
    bytes_per_second: float = float("inf")

    def __post_init__(self) -> None:
        latency, bandwidth = self.latency_seconds, self.bytes_per_second
        name, why = "latency_seconds of a link", "messages take time"
        require_amount(name, latency, why=why, most=1e6)
        name, why = "bytes_per_second of a link", "bytes have to go through"
        require_amount(name, bandwidth, why=why, least=_LEAST_SPEED)

    def seconds(self, num_bytes: int) -> float:
        """Return the seconds that a message of `num_bytes` takes."""
        return self.latency_seconds + num_bytes / self.bytes_per_second
