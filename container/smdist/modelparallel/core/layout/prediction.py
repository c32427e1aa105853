# SPDX-License-Identifier: Apache-2.0
"""Prediction of a layout: seconds of a step by part, bytes of a rank by kind, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass

from smdist.modelparallel.core.layout.degrees import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeParts:
    """Seconds of a step on its slowest rank; their sum is the step.

    Attributes:
        compute: Forward and backward passes.
        recompute: Activations that are computed again, because of checkpointing.
        bubble: Waiting of the slowest rank of a pipeline, messages between stages included.
        tensor: All-reduces of tensor parallelism, with which nothing overlaps.
        shards: Gathers of shards, and reductions to shards, that computation does not hide.
        gradients: Sums of gradients over replicas at the end of the step.
        offload: Copies of activations that computation does not hide.
        optimizer: Update of weights.
        hidden: Messages that computation hides; not part of the step.
    """

    compute: float = 0.0
    recompute: float = 0.0
    bubble: float = 0.0
    tensor: float = 0.0
    shards: float = 0.0
    gradients: float = 0.0
    offload: float = 0.0
    optimizer: float = 0.0
    hidden: float = 0.0

    @property
    def step(self) -> float:
        """Seconds of the step."""
        exposed = self.tensor + self.shards + self.gradients
        rest = self.bubble + self.offload + self.optimizer
        return self.compute + self.recompute + exposed + rest


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes of the fullest rank; their sum is what it needs.

    Attributes:
        state: Weights, gradients and optimizer state that stay in memory.
        gathered: Whole weights gathered from shards, at the fullest moment.
        activations: Activations of all microbatches in flight.
        workspace: Largest temporary memory of a layer.
        margin: Allowance for the allocator's rounding and fragments.
    """

    state: float = 0.0
    gathered: float = 0.0
    activations: float = 0.0
    workspace: float = 0.0
    margin: float = 0.0

    @property
    def total(self) -> float:
        """Bytes of the rank."""
        return self.state + self.gathered + self.activations + self.workspace + self.margin


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted time and memory of one layout.

    Attributes:
        layout: The layout.
        time: Seconds of a step by part.
        memory: Bytes of the fullest rank by kind.
        stages: End of each stage in the list of layers, exclusive.
        spread: Relative uncertainty of the computed seconds.
        slowdown: Times that computation may take longer, at most, since its dtype is slower than
            the one of the device's peak; 1 if it is not.
    """

    layout: Layout
    time: TimeParts
    memory: MemoryParts
    stages: tuple[int, ...]
    spread: float
    slowdown: float = 1.0

    @property
    def step_seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.time.step

    @property
    def low_seconds(self) -> float:
        """Lower end of the range of a step's seconds."""
        return self.time.step * (1 - self.spread)

    @property
    def high_seconds(self) -> float:
        """Upper end of the range: everything is slower, and no message is hidden."""
        computed = self.time.compute + self.time.recompute + self.time.bubble
        step = self.time.step + (self.slowdown - 1) * computed
        return step * (1 + self.spread) + self.time.hidden

    @property
    def seconds_per_sample(self) -> float:
        """Seconds of a step divided by its samples; the search minimizes it."""
        return self.time.step / self.layout.samples


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutMisfit:
    """Layout that needs more memory than a rank has.

    Attributes:
        layout: The layout.
        memory: Bytes of the fullest rank by kind, with the division that balances time.
        limit_bytes: Bytes that a rank may use.
    """

    layout: Layout
    memory: MemoryParts
    limit_bytes: float
