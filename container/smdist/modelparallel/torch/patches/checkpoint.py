# SPDX-License-Identifier: Apache-2.0
"""Activation checkpoints under the path from which SMP v1's scripts import them."""

from smdist.modelparallel.torch.smp.activation_checkpointing import (
    checkpoint,
    checkpoint_sequential,
)

__all__ = ["checkpoint", "checkpoint_sequential"]
