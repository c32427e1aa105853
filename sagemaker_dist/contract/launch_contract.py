# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters by which the SDK instructs the sagemaker-dist launcher.

`distribution=`                            hyperparameter
DataParallel()                             sagemaker_dist_config = {"version": ...}
DataParallel() with TensorFlow             sagemaker_dist_config = {..., "framework": ...}
{"torch_distributed": {"enabled": True}}   sagemaker_torch_distributed_enabled = true
{"mpi": {"enabled": True}}                 sagemaker_dist_config, sagemaker_mpi_enabled = true
{..., "instance_groups": [group]}          sagemaker_distribution_instance_groups = ["name"]
"""

from __future__ import annotations

from typing import Any

from sagemaker_dist.contract.aws_distributions import SMDDP
from sagemaker_dist.contract.distribution import Distribution
from sagemaker_dist.contract.hyperparameter_format import KEY, render
from sagemaker_dist.contract.sdk_flags import (
    GROUPS_KEY,
    INSTANCE_KEY,
    MPI_FLAG,
    MPI_OPTIONS_KEY,
    SERVED_FLAGS,
    SMDDP_MPI_OPTIONS_KEY,
)


def launch_parameters(
    distribution: Distribution, instance_type: Any, framework: str | None = None
) -> dict[str, Any]:
    """Return the hyperparameters for the sagemaker-dist launcher, by name, not yet encoded as JSON.

    Args:
        distribution: Parsed `distribution=` of the job.
        instance_type: Instance type of the job; None if the job has instance groups.
        framework: "torch" or "tensorflow"; if None, the launcher uses the framework of its image.
    """
    added: dict[str, Any] = {}
    if distribution.options is not None:
        added[KEY] = render(distribution.options, framework)
    if distribution.sdk_key is not None:
        added[SERVED_FLAGS[distribution.sdk_key]] = True
        if instance_type is not None:
            added[INSTANCE_KEY] = instance_type
    if isinstance(distribution.mpi, SMDDP):
        added[SMDDP_MPI_OPTIONS_KEY] = distribution.mpi.custom_mpi_options
    elif distribution.mpi is not None:
        added[MPI_FLAG] = True
        added[MPI_OPTIONS_KEY] = distribution.mpi.custom_mpi_options
    if distribution.is_launched and distribution.groups:
        added[GROUPS_KEY] = distribution.group_names
    return added
