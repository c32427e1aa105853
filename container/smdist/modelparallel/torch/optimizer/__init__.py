# SPDX-License-Identifier: Apache-2.0
"""Optimizers of a model that is cut: `smp.DistributedOptimizer`."""

from smdist.modelparallel.torch.optimizer.distributed import DistributedOptimizer

__all__ = ["DistributedOptimizer"]
