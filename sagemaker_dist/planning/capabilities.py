# SPDX-License-Identifier: Apache-2.0
"""What an instance type cannot do for ranks of ours. Facts decide, never names."""

from __future__ import annotations

from collections.abc import Iterator

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.job import Job


def capability_faults(job: Job, *, names_image: bool) -> Iterator[OptionError]:
    """Why ranks in our image would train on less than what the instance type is paid for.

    Args:
        job: Of our distribution or not; only the former has faults.
        names_image: An image_uri is given, be it by a pipeline: what it holds is its own affair.
    """
    instance = training_instances().get(str(job.instance_type))
    if job.distribution.ours is None or instance is None or names_image:
        return
    if instance.is_neuron:
        yield OptionError(
            f"instance_type is {instance.name!r}",
            "it has Neuron accelerators, and our image has no Neuron SDK:"
            " ranks would train on the host's CPUs",
            "Pass a type with GPUs or with CPUs alone,"
            " or the image_uri of an image with the Neuron SDK",
        )
