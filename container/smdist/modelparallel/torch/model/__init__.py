# SPDX-License-Identifier: Apache-2.0
"""SMP's face of a model on several ranks: `smp.DistributedModel`."""

from smdist.modelparallel.torch.model.distributed import DistributedModel

__all__ = ["DistributedModel"]
