# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.tensorflow.data`, which sagemaker-dist does not have."""

from sagemaker_dist_horovod.names import refused

raise refused(
    "tensorflow.data",
    "there is no compute service: each rank reads and prepares its own data",
    "Use tf.data with shard(hvd.size(), hvd.rank())",
)
