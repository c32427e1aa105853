# SPDX-License-Identifier: Apache-2.0
"""Data parallelism of pipelines: replicas of a stage have equal parameters and gradients.

replicas = Replicas(stages, placement, schedule, groups, graph=captured.graph)
replicas.prepare()     # once: parameters become equal
executor = Executor(stages, placement, schedule, group, hooks=replicas.hooks)

replicas.begin()       # in each step
...                    # the executor runs the microbatches
replicas.finish()      # gradients are averaged over replicas, and summed for tied parameters
"""

from smdist.modelparallel.torch.replicas.grad_clipping import clip_grad_norm_
from smdist.modelparallel.torch.replicas.grad_scaler import GradScaler
from smdist.modelparallel.torch.replicas.replicas import Replicas

__all__ = ["GradScaler", "Replicas", "clip_grad_norm_"]
