# SPDX-License-Identifier: Apache-2.0
"""Objects that the steps of an executor use, and what a step keeps of a microbatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.autograd.graph import GradientEdge

from smdist.modelparallel.torch.executor.offload import ActivationOffload
from smdist.modelparallel.torch.executor.p2p import MemoryCounter
from smdist.modelparallel.torch.executor.split_backward import Roots
from smdist.modelparallel.torch.executor.stage_edges import StageEdges
from smdist.modelparallel.torch.materialization.stage_module import StageModule

OnEvent = Callable[[str, int, int, float, float, str], None]


class StageHooks(Protocol):
    """Functions that an executor calls before and after each backward action of a stage.

    The backward pass of a microbatch is one action (B), or two: I for gradients of the stage's
    inputs, and W for gradients of the stage's parameters.
    """

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Prepare a backward action.

        Args:
            stage: Number of the stage.
            is_last: True if this is the stage's last backward action in the step.
        """

    def after_backward(self, stage: int, is_last: bool) -> None:
        """Finish a backward action, after the gradients of the stage's inputs have been sent.

        Args:
            stage: Number of the stage.
            is_last: True if this was the stage's last backward action in the step.
        """


@dataclass(frozen=True, slots=True)
class SavedMicrobatch:
    """Data of one microbatch on one stage, kept from the forward to the backward pass.

    Attributes:
        received: Leaves for the values from earlier stages that need a gradient, by name.
        passed_on: Gradient edges of the tensors whose gradients later stages will send back, by
            name. They do not keep the tensors in memory.
        roots: (tensor, gradient) pairs from which the backward pass starts in the user's code.
    """

    received: Mapping[str, Tensor]
    passed_on: Mapping[str, GradientEdge]
    roots: Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResources:
    """Objects of an executor that each of its steps uses.

    Attributes:
        stages: This rank's stages by number.
        stage_edges: Messages that all stages exchange.
        memory: Counter of the bytes in message buffers, and of microbatches in flight.
        hooks: Functions called before and after each backward action; None to call none.
        on_event: Function called with the times of each action, receive and send; None to call
            none.
        offload: Object that moves activations to the host; None to leave them on the device.
    """

    stages: Mapping[int, StageModule]
    stage_edges: StageEdges
    memory: MemoryCounter
    hooks: StageHooks | None
    on_event: OnEvent | None
    offload: ActivationOffload | None = None
