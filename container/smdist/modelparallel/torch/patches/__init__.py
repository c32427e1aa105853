# SPDX-License-Identifier: Apache-2.0
"""Import path `smp.patches.checkpoint` of SMP v1, for its activation checkpointing functions."""

from smdist.modelparallel.torch.patches import checkpoint

__all__ = ["checkpoint"]
