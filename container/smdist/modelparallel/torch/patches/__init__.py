# SPDX-License-Identifier: Apache-2.0
"""Package of SMP v1's import path for activation checkpoints: `smp.patches.checkpoint`."""

from smdist.modelparallel.torch.patches import checkpoint

__all__ = ["checkpoint"]
