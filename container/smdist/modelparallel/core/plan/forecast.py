# SPDX-License-Identifier: Apache-2.0
"""Predicted time and memory of a plan's step, and data of rejected plans, for reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForecast:
    """Predicted time of one stage for one microbatch, and number of its parameters.

    Attributes:
        forward_seconds: Seconds of the forward pass.
        backward_seconds: Seconds of the backward pass.
        num_parameters: Number of elements of the parameters that the stage holds, including tied
            parameters.
    """

    forward_seconds: float
    backward_seconds: float
    num_parameters: int

    @property
    def seconds(self) -> float:
        """Seconds of the forward and the backward pass."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of one rank of a pipeline at its peak.

    Attributes:
        state_bytes: Bytes of weights, gradients and optimizer state.
        activation_bytes: Bytes kept from forward to backward passes, of all microbatches in flight.
        receive_bytes: Bytes of buffers for values and gradients from other ranks.
        workspace_bytes: Bytes that a forward or backward pass needs while it runs.
    """

    state_bytes: int
    activation_bytes: int
    receive_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        """Sum of the bytes of state, activations, receive buffers and workspace."""
        parts = (self.state_bytes, self.activation_bytes, self.receive_bytes)
        return sum(parts) + self.workspace_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Predicted time and memory of one training step of a plan.

    Attributes:
        step_seconds: Seconds from the first forward pass to the end of the last sum of gradients.
        samples_per_second: Throughput of all replicas together.
        bubble_fraction: Fraction of the pipeline's time in which its ranks wait, from 0 to 1.
        reduce_seconds: Seconds of a step after the last backward pass, in which gradients are
            summed over replicas.
        stages: Predicted time of each stage.
        memory: Peak memory of each rank of one pipeline.
        memory_limit_bytes: Bytes that a rank may use; None if unknown.
        bottleneck: Name of the undivided module that takes the most time.
        source: Source of the modules' times and bytes: "measured" or "estimated".
        device: Device that the modules were measured on or estimated for, such as "NVIDIA A100".
        basis: Digest of the plan's degrees, batch, schedule and stages when the forecast was made.
            It differs from `Plan.basis` if the plan was edited afterwards.
    """

    step_seconds: float
    samples_per_second: float
    bubble_fraction: float
    reduce_seconds: float
    stages: tuple[StageForecast, ...]
    memory: tuple[RankMemory, ...]
    memory_limit_bytes: int | None
    bottleneck: str
    source: str
    device: str
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Alternative to a plan that the planner did not choose, with the reason.

    Attributes:
        what: Degrees, schedule and number of microbatches of the alternative, as text.
        differs: Difference from the chosen plan: "degrees", "schedule" or "microbatches".
        group: Kind of rejection: "slower", "memory" or "impossible".
        why: Reason, as a clause without full stop.
        step_seconds: Predicted seconds of a step; None if it was not simulated.
        samples_per_second: Predicted throughput of all replicas together; None if it was not
            simulated.
    """

    what: str
    differs: str
    group: str
    why: str
    step_seconds: float | None = None
    samples_per_second: float | None = None
