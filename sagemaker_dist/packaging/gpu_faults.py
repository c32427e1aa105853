# SPDX-License-Identifier: Apache-2.0
"""Check that an image has code for the GPUs of a job's instance types, before the job starts.

Nothing is refused without knowledge: images whose labels are unknown, or that were built on an
image of sagemaker-dist and may hold another framework, pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from sagemaker_dist.catalog import Instance, training_instances
from sagemaker_dist.errors import OptionError
from sagemaker_dist.packaging.ecr_labels import ecr_labels
from sagemaker_dist.packaging.gpu_code import runs_on
from sagemaker_dist.packaging.image_labels import ImageLabels

_BUILD: Final = "sagemaker-dist image build"
_HINTS: Final = {
    "torch": f"Build the image with CUDA and push it ({_BUILD} --accelerator cuda), or pass an"
    " instance_type without GPUs",
    "tensorflow": f"Build it on an image that has a CUDA build of TensorFlow ({_BUILD} --framework"
    " tensorflow --base-image IMAGE), or pass an instance_type without GPUs",
}


def remote_gpu_faults(session: Any, image: str, types: Iterable[str]) -> Iterator[OptionError]:
    """Yield a fault for each instance type whose GPUs an image in ECR has no code for.

    ECR is called only if there is a type with GPUs. `session` is a boto3.Session, `image` the
    image's URI, and `types` are the names of the instance types of the job.
    """
    known = training_instances()
    hosts = [known[name] for name in dict.fromkeys(types) if name in known and known[name].has_gpu]
    labels = ecr_labels(session, image) if hosts else None
    if labels is not None:
        for host in hosts:
            yield from gpu_faults(labels, image, host)


def gpu_faults(labels: ImageLabels, image: str, instance: Instance) -> Iterator[OptionError]:
    """Yield a fault if an image has no code for the GPUs of an instance type.

    `labels` are those of the image, `image` is its name.
    """
    yield from _faults(
        labels,
        image,
        instance.name,
        f"its GPUs ({instance.accelerator})",
        [instance.compute_capability] if instance.compute_capability else [],
    )


def local_gpu_faults(
    labels: ImageLabels, image: str, capabilities: Iterable[str]
) -> Iterator[OptionError]:
    """Yield a fault if an image has no code for a GPU of this machine.

    `capabilities` are the compute capabilities of the machine's GPUs.
    """
    name = "local_gpu"
    yield from _faults(labels, image, name, "GPUs of this machine", sorted({*capabilities}))


def _faults(
    labels: ImageLabels, image: str, type_: str, gpus: str, capabilities: list[str]
) -> Iterator[OptionError]:
    code, framework = labels.gpu_code, labels.framework
    if code is None or framework not in _HINTS or labels.is_derived:
        return
    if not code:
        yield OptionError(
            f"instance_type is {type_!r}",
            f"image {image} has a CPU build of {framework}, with which ranks would train on the"
            " host's CPUs",
            _HINTS[framework],
            about="instance_type",
            kind="cpu_build",
        )
        return
    for capability in capabilities:
        if not runs_on(code, capability):
            yield OptionError(
                f"instance_type is {type_!r}",
                f"{gpus} have compute capability {capability}, and {framework} in image {image} has"
                f" code for {', '.join(code)} only",
                "Pass another instance_type, or an image whose framework was built for these GPUs",
                about="instance_type",
                kind="no_gpu_code",
            )
