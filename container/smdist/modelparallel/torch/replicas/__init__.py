# SPDX-License-Identifier: Apache-2.0
"""What ranks that hold the same parameters do for each other.

replicas = Replicas(stages, placement, schedule, groups, graph=captured.graph)
replicas.prepare()
replicas.begin()
executor = Executor(stages, placement, schedule, group, hooks=replicas.hooks)   ... runs
replicas.finish()            gradients are means over replicas, and sums over what is tied
"""

from smdist.modelparallel.torch.replicas.replicas import Replicas

__all__ = ["Replicas"]
