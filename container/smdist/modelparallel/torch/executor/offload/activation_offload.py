# SPDX-License-Identifier: Apache-2.0
"""Class `ActivationOffload`: what all steps of a model share to move activations to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smdist.modelparallel.core.schedule.actions import Action
from smdist.modelparallel.torch.executor.offload.device_copies import DeviceCopies
from smdist.modelparallel.torch.executor.offload.step_offload import StepOffload


class ActivationOffload:
    """Streams, pinned memory and horizon of a model's activation offload.

    Args:
        device: Accelerator of this process.
        horizon: Largest number of layers whose activations are on the device at once, at least 1.

    Attributes:
        copies: Copies between the device and the host.
    """

    def __init__(self, device: torch.device, horizon: int) -> None:
        self.copies = DeviceCopies(device)
        self._horizon = horizon

    def step(self, actions: Sequence[Action]) -> StepOffload:
        """Return the object that moves the activations of one step.

        Args:
            actions: Actions of this rank in the step, in order.
        """
        return StepOffload(self.copies, actions, self._horizon)
