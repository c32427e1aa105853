# SPDX-License-Identifier: Apache-2.0
"""Import path of SMP v1's activation checkpoints: `smp.patches.checkpoint`."""

from smdist.modelparallel.torch.patches import checkpoint

__all__ = ["checkpoint"]
