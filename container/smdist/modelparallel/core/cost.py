# SPDX-License-Identifier: Apache-2.0
"""What parts of a model cost: seconds and bytes for one microbatch on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smdist.modelparallel.core.amounts import require_amount
from smdist.modelparallel.core.graph import Parameter

_LEAST_SPEED = 1e-9  # bytes a second: any less is a slip


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """What one node, or the sum of several, costs for one microbatch.

    Attributes:
        forward_seconds: F.
        input_gradient_seconds: I, the part of the backward pass that the stage before waits for.
        weight_gradient_seconds: W, the rest. The whole backward pass B is I + W.
        saved_bytes: Kept from the forward to the backward pass; parameters do not count.
        workspace_bytes: Held at the peak of either pass beyond what is kept.
        keeps: Of one node, values of the graph that it keeps. Where several nodes keep one, its
            bytes are in `saved_bytes` of the first alone. A sum of nodes names none.
    """

    forward_seconds: float = 0.0
    input_gradient_seconds: float = 0.0
    weight_gradient_seconds: float = 0.0
    saved_bytes: int = 0
    workspace_bytes: int = 0
    keeps: tuple[str, ...] = ()

    @property
    def backward_seconds(self) -> float:
        """B."""
        return self.input_gradient_seconds + self.weight_gradient_seconds

    @property
    def seconds(self) -> float:
        """F + B."""
        return self.forward_seconds + self.backward_seconds

    def __add__(self, other: NodeCost) -> NodeCost:
        """One after the other: times and saved bytes add up, workspaces do not meet."""
        return NodeCost(
            forward_seconds=self.forward_seconds + other.forward_seconds,
            input_gradient_seconds=self.input_gradient_seconds + other.input_gradient_seconds,
            weight_gradient_seconds=self.weight_gradient_seconds + other.weight_gradient_seconds,
            saved_bytes=self.saved_bytes + other.saved_bytes,
            workspace_bytes=max(self.workspace_bytes, other.workspace_bytes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What every node of a graph costs.

    Attributes:
        nodes: By the node's name; a node that is missing costs nothing.
        source: "measured" on `device`, or "estimated" from operations and bytes for it.
        device: For people: "cpu", "NVIDIA A100".
    """

    nodes: Mapping[str, NodeCost]
    source: str
    device: str

    def of(self, name: str) -> NodeCost:
        """What one node costs."""
        return self.nodes.get(name, NodeCost())


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """What a trained parameter holds in memory all the time, in bytes an element.

    The defaults are Adam in fp32. bf16 with fp32 master weights comes to 16 as well
    (2 + 2 + 12). A frozen parameter holds its own bytes alone.

    Attributes:
        gradient: As well what each element sends when gradients are summed over replicas: pass 2
            where they are summed in bf16.

    Raises:
        OptionError: One of them is no number from 0 to 1,000,000.
    """

    weight: float = 4.0
    gradient: float = 4.0
    optimizer: float = 8.0

    def __post_init__(self) -> None:
        why = "it is in bytes an element of a parameter"
        for name in ("weight", "gradient", "optimizer"):
            require_amount(f"{name} of the state", getattr(self, name), why=why, most=1e6)

    def of(self, parameter: Parameter) -> int:
        """Bytes of weight, gradient and optimizer state of one parameter."""
        if not parameter.is_trained:
            return parameter.num_bytes
        return round(parameter.num_elements * (self.weight + self.gradient + self.optimizer))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What joins two ranks: a message of n bytes takes latency + n / bandwidth.

    Raises:
        OptionError: A latency below 0 or without end, or a bandwidth of 0 or less.
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
        """How long a message takes."""
        return self.latency_seconds + num_bytes / self.bytes_per_second
