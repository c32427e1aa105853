# SPDX-License-Identifier: Apache-2.0
"""What a plan is expected to take, and what it was preferred to: numbers for people and plots."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForecast:
    """What one microbatch takes on one stage.

    Attributes:
        num_parameters: Elements of the parameters that the stage holds, tied ones included.
    """

    forward_seconds: float
    backward_seconds: float
    num_parameters: int

    @property
    def seconds(self) -> float:
        """Forward and backward."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank of a pipeline holds when it holds the most.

    Attributes:
        state_bytes: Weights, gradients and the optimizer's state.
        activation_bytes: Kept between forward and backward passes, of all microbatches under way.
        receive_bytes: Buffers of values and gradients that have arrived and are not used yet.
        workspace_bytes: What a forward or backward pass needs while it runs.
    """

    state_bytes: int
    activation_bytes: int
    receive_bytes: int
    workspace_bytes: int

    @property
    def total_bytes(self) -> int:
        """All four."""
        parts = (self.state_bytes, self.activation_bytes, self.receive_bytes)
        return sum(parts) + self.workspace_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a step is expected to take.

    Attributes:
        step_seconds: From the first forward pass to the end of the last reduction.
        samples_per_second: Of all replicas together.
        bubble_fraction: Of the pipeline's time, how much its ranks wait; 0 to 1.
        reduce_seconds: How much of the step is spent on summing gradients over replicas.
        stages: By stage.
        memory: By rank of one pipeline.
        memory_limit_bytes: What a rank may use; None where nobody said.
        bottleneck: The unit that takes the most time.
        source: "measured" or "estimated": where the costs come from.
        device: What they hold for: "cpu", "NVIDIA A100".
        basis: Stands for the decisions that all this follows from (`Plan.basis`).
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
    """A plan that was not chosen.

    Attributes:
        what: Its degrees, schedule and number of microbatches, for people.
        differs: In what, from the plan: "degrees", "schedule" or "microbatches".
        group: "slower", "memory" or "impossible".
        why: One sentence without its full stop.
        step_seconds: As predicted; None where it was not simulated.
        samples_per_second: Likewise, of all replicas together.
    """

    what: str
    differs: str
    group: str
    why: str
    step_seconds: float | None = None
    samples_per_second: float | None = None
