# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.mxnet`, which sagemaker-dist does not have."""

from sagemaker_dist_horovod.names import refused

raise refused(
    "mxnet",
    "it serves PyTorch and TensorFlow",
    "Use horovod.torch or horovod.tensorflow",
)
