# SPDX-License-Identifier: Apache-2.0
"""Data parallelism under a pipeline: ranks that hold the same parameters keep them equal.

replicas = Replicas(stages, placement, schedule, groups, graph=captured.graph)
replicas.prepare()

replicas.begin()
executor = Executor(stages, placement, schedule, group, hooks=replicas.hooks)   ... runs
replicas.finish()    gradients are means over replicas, and sums over holders of tied parameters
"""

from smdist.modelparallel.torch.replicas.grad_clipping import clip_grad_norm_
from smdist.modelparallel.torch.replicas.grad_scaler import GradScaler
from smdist.modelparallel.torch.replicas.replicas import Replicas

__all__ = ["GradScaler", "Replicas", "clip_grad_norm_"]
