# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.spark`, which sagemaker-dist does not have."""

from sagemaker_dist_horovod.names import refused

raise refused(
    "spark",
    "ranks are started by SageMaker, torchrun or horovodrun, not by Spark",
    "Run the training as a job of SageMaker that reads what Spark has written",
)
