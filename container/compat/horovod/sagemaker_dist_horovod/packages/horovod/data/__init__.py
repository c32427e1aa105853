# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.data`, which sagemaker-dist does not have."""

from sagemaker_dist_horovod.names import refused

raise refused(
    "data",
    "its data loaders read what Horovod's estimators for Spark have written",
    "Use torch.utils.data.DataLoader with a DistributedSampler, or tf.data with shard()",
)
