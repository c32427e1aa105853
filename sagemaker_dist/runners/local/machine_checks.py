# SPDX-License-Identifier: Apache-2.0
"""Checks, before a local job starts, that this machine can run its hosts."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sagemaker_dist.errors import SetupError, raise_all
from sagemaker_dist.packaging.docker_engine import Engine, address, connected
from sagemaker_dist.packaging.frameworks import FRAMEWORKS, default_tag
from sagemaker_dist.packaging.gpu_faults import local_gpu_faults
from sagemaker_dist.packaging.image_facts import (
    ImageFacts,
    check_versions,
    inspect_image,
    local_image,
)
from sagemaker_dist.planning import LocalJob
from sagemaker_dist.planning.local_job import divide_gpus
from sagemaker_dist.runners.local.containers.nvidia_gpus import compute_capabilities, list_gpus
from sagemaker_dist.runners.local.job_folder import JobFolder

if TYPE_CHECKING:
    from docker import DockerClient

_HERE: Final = frozenset({None, "localhost", "127.0.0.1", "::1"})
_NETWORKED: Final = frozenset({"tcp", "http", "https", "ssh"})


def check_setup(job: LocalJob) -> None:
    """Check that this machine has what the job's hosts need: runtime, Docker engine, image, GPUs.

    Raises:
        SetupError: The runtime, the Docker engine or the image is missing, or cannot run this job.
        SkewError: SDK and image have different versions.
        OptionError: There are fewer GPUs than hosts, or the image has no code for the GPUs.
    """
    if job.in_containers:
        _check_containers(job)
    else:
        _check_processes()


def _check_processes() -> None:
    if sys.platform != "linux":
        raise SetupError(
            "local_process cannot run on this machine",
            f"the runtime runs on Linux only, and this is {sys.platform}",
            "Use instance_type='local' (Docker), or an instance type of SageMaker",
            about="instance_type",
            kind="not_linux",
        )
    if find_spec("smdist") is None:
        raise SetupError(
            "the sagemaker-dist runtime is not installed",
            "local_process starts the ranks on this machine, and they import the runtime",
            "In a clone of the project, in the Python environment that has torch 2.13, run:"
            " pip install ./container",
            kind="no_runtime",
        )


def _check_containers(job: LocalJob) -> None:
    _check_nearness(address())
    with connected() as client:
        sweep_leftovers(client)
        image = _check_image(client, job.image)
        _check_framework(job, image)
        _check_pipes(job, Engine.of(client))
    if job.instance_type == "local_gpu":
        divide_gpus(list_gpus(), len(job.hosts))
        raise_all(local_gpu_faults(image, image.name, compute_capabilities()))


def _check_nearness(engine: str) -> None:
    place = urlsplit(engine)
    if place.scheme in _NETWORKED and place.hostname not in _HERE:
        raise SetupError(
            f"DOCKER_HOST is {engine!r}",
            "a Docker engine on another machine cannot read this machine's files",
            "Unset DOCKER_HOST, or start the job on the engine's machine",
            about="DOCKER_HOST",
            kind="other_machine",
        )


def _check_image(client: DockerClient, name: str) -> ImageFacts:
    frameworks = {default_tag(framework): framework for framework in FRAMEWORKS}
    if name in frameworks:
        return local_image(client, frameworks[name])
    facts = inspect_image(name, client=client)
    check_versions(facts)
    return facts


def _check_framework(job: LocalJob, image: ImageFacts) -> None:
    required = job.framework
    if required is not None and image.framework not in {None, required}:
        raise SetupError(
            f"image {image.name!r} has {image.framework}, not {required}",
            f"the ranks of this distribution train with {required}",
            "Pass another image_uri, or leave distribution out for one process per host",
            about="image_uri",
            kind="conflict",
        )


def _check_pipes(job: LocalJob, engine: Engine) -> None:
    for channel in job.channels:
        if channel.is_pipe and engine.is_desktop:
            raise SetupError(
                f"channel {channel.name!r} is a pipe",
                "Docker Desktop runs containers in a virtual machine, which cannot read FIFOs of"
                " this machine",
                "Pass input_mode='FastFile' or 'File'",
            )


def sweep_leftovers(client: DockerClient) -> None:
    """Remove the containers and networks of jobs whose supervisor was killed.

    Only jobs whose folder is on this machine are considered: another machine may use the same
    Docker engine for its own jobs.
    """
    from sagemaker_dist.runners.local.containers.container_fleet import sweep

    sweep(client, lambda folder: folder.exists() and JobFolder(folder).state().is_terminal)
