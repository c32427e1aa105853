# SPDX-License-Identifier: Apache-2.0
"""Checks that smdist ranks can use the accelerators of an instance type."""

from __future__ import annotations

from collections.abc import Iterator

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.job import Job


def capability_faults(job: Job) -> Iterator[OptionError]:
    """Yield a fault if ranks in the default image cannot use the accelerators of the instance type.

    Nothing is checked if the user passes an image.
    """
    kind, _ = job.training_hosts
    instance = training_instances().get(str(kind))
    if not job.distribution.is_launched or instance is None or job.names_image:
        return
    if instance.is_neuron:
        yield OptionError(
            f"instance_type is {instance.name!r}",
            "it has Neuron accelerators, and the sagemaker-dist image has no Neuron SDK:"
            " ranks would train on the host's CPUs",
            "Pass a type with GPUs or with CPUs alone,"
            " or the image_uri of an image with the Neuron SDK",
            about="instance_type",
        )
