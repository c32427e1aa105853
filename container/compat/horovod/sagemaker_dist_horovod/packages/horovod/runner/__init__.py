# SPDX-License-Identifier: Apache-2.0
"""Module `horovod.runner`, which sagemaker-dist does not have."""

from sagemaker_dist_horovod.names import refused

raise refused(
    "runner",
    "ranks are started by SageMaker, torchrun or the program horovodrun",
    "Start the script with horovodrun -np N python train.py",
)
