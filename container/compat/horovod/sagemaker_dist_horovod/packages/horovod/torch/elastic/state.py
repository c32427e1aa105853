# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.torch.elastic.state`: not available."""

from sagemaker_dist_horovod.names import refused

raise refused(
    "torch.elastic.state",
    "a state keeps model, optimizer, scheduler and sampler without classes for each of them",
    "Use hvd.elastic.TorchState(model, optimizer, ...)",
)
