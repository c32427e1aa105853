# SPDX-License-Identifier: Apache-2.0
"""How gradients will travel on an instance type, said before a job starts."""

from __future__ import annotations

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.planning.job import Job


def travel_warning(job: Job) -> str | None:
    """What to know before ranks run on GPUs, or None."""
    instance = training_instances().get(str(job.instance_type))
    if job.distribution.ours is None or instance is None or not instance.has_gpu:
        return None
    return (
        f"{instance.name} has GPUs, and smdist does not carry CUDA tensors yet."
        ' Use init_process_group("cpu:smdist,cuda:nccl") in the script:'
        " CUDA tensors then travel with NCCL, CPU tensors with smdist."
    )
