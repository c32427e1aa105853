# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.ray`, which sagemaker-dist does not have."""

from sagemaker_dist_horovod.names import refused

raise refused(
    "ray",
    "ranks are started by SageMaker, torchrun or horovodrun, not by Ray",
    "Run the training as a job of SageMaker, or with torchrun",
)
