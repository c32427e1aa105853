# SPDX-License-Identifier: Apache-2.0
"""What ranks that hold the same parameters do for each other.

replicas = Replicas(stages, placement, schedule, groups, graph=captured.graph)
replicas.prepare()
replicas.begin()
executor = Executor(stages, placement, schedule, group, hooks=replicas.hooks)   ... runs
replicas.finish()            gradients are means over replicas, and sums over what is tied
"""

from smdist.modelparallel.torch.replicas.clip import clip_grad_norm_
from smdist.modelparallel.torch.replicas.replicas import Replicas
from smdist.modelparallel.torch.replicas.scaler import GradScaler

__all__ = ["GradScaler", "Replicas", "clip_grad_norm_"]
