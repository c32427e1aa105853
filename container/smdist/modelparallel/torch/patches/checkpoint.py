# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing functions under the import path that SMP v1's scripts use."""

from smdist.modelparallel.torch.smp.activation_checkpointing import (
    checkpoint,
    checkpoint_sequential,
)

__all__ = ["checkpoint", "checkpoint_sequential"]
