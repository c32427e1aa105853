# SPDX-License-Identifier: Apache-2.0
"""Activation checkpoints by the path that SMP v1's scripts import them from."""

from smdist.modelparallel.torch.activations import checkpoint, checkpoint_sequential

__all__ = ["checkpoint", "checkpoint_sequential"]
