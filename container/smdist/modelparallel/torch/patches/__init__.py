# SPDX-License-Identifier: Apache-2.0
"""Where SMP v1 has its own activation checkpoints: `smp.patches.checkpoint`."""

from smdist.modelparallel.torch.patches import checkpoint

__all__ = ["checkpoint"]
