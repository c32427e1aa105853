# SPDX-License-Identifier: Apache-2.0
"""Move of this rank's stages to its accelerator, for a model that was created on the CPU.

A model that is too large for one device is created on the CPU. Its batches are on the device, as in
SMP v1. Once the model is split, each rank has only its own stages on the device.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.materialization.skeleton import entries, like, replace


def move_stages(model: nn.Module, stages: Mapping[int, nn.Module], device: torch.device) -> None:
    """Move the parameters and buffers of this rank's stages from the CPU to a device.

    New tensors replace these tensors, in the model too, so an optimizer must get the new
    parameters. Tied parameters stay tied. Gradients are moved with their parameters.

    Args:
        model: The whole model, whose modules the stages share.
        stages: The stages of this rank, by number.
        device: Device of the new tensors.
    """
    held = {id(t): t for stage in stages.values() for t in entries(stage.modules())}
    moved = {key: _moved(t, device) for key, t in held.items() if t.device.type == "cpu"}
    for holder in (model, *stages.values()):
        replace(holder.modules(), moved)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    made = like(tensor, tensor.detach().to(device))
    if tensor.grad is not None:
        made.grad = tensor.grad.to(device)
    return made
