# SPDX-License-Identifier: Apache-2.0
"""Docker's arguments for one host: pure, so that they can be printed and tested.

/opt/ml              the host's directory tree on this machine
  input/data/NAME    a channel, read-only
  checkpoints        the checkpoints that all hosts share
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from docker.types import DeviceRequest, LogConfig
from docker.types import Mount as Bind

from sagemaker_dist.packaging.docker_engine import Engine
from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.planning.local_job import CONTAINER_ROOT
from sagemaker_dist.runners.local.data.channels import Mount
from sagemaker_dist.runners.local.opt_ml_tree import sagemaker_environment

FOLDER_LABEL: Final = "sagemaker-dist.job-folder"  # label with the folder of the containers' job
HOST_LABEL: Final = "sagemaker-dist.host"
_LOGS: Final = {"max-size": "10m", "max-file": "1"}  # small, because the job keeps its own logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The user of this machine who runs the job.

    Attributes:
        groups: Further groups of the user, for access to data.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def current(cls) -> Owner:
        """Return the user of this process."""
        return cls(uid=os.getuid(), gid=os.getgid(), groups=tuple(os.getgroups()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Directories of one host on this machine.

    Attributes:
        folder: Folder of the job, which labels its containers.
        tree: Directory mounted as /opt/ml.
        checkpoints: Checkpoints, shared by all hosts.
        mounts: Mounts of the data.
    """

    folder: Path
    tree: Path
    checkpoints: Path
    mounts: tuple[Mount, ...] = ()


def network_name(job: LocalJob) -> str:
    """Return the name of the network of one job's hosts."""
    return f"sagemaker-dist-{job.name}"


def container_arguments(
    job: LocalJob, host: LocalHost, places: Places, engine: Engine, owner: Owner
) -> dict[str, Any]:
    """Return the arguments of `client.containers.create`, without network and GPUs.

    Shared memory may take half of the machine's memory, as on a Linux host: tmpfs uses only what is
    written, and Docker's default of 64 MB breaks most data loaders.
    """
    return {
        "image": job.image,
        "command": list(job.arguments) if job.arguments is not None else ["train"],
        "entrypoint": list(job.entrypoint) if job.entrypoint is not None else None,
        "name": f"{network_name(job)}-{host.label}",
        "hostname": host.address,
        "environment": container_environment(job, host, engine),
        "mounts": _binds(job, places),
        "shm_size": engine.memory_bytes // 2,
        "labels": {FOLDER_LABEL: str(places.folder), HOST_LABEL: host.label},
        "log_config": LogConfig(type="json-file", config=_LOGS),
        **_identity(engine, owner),
    }


def container_environment(job: LocalJob, host: LocalHost, engine: Engine) -> dict[str, str]:
    """Return SageMaker's variables, then the user's; none of this machine's, above all no
    credentials.

    OMP_NUM_THREADS is set because hosts share one machine's CPUs, which a launcher in a container
    cannot see.
    """
    own = sagemaker_environment(job, host)
    if job.has_world:
        ranks = len(job.hosts) * (job.processes_per_host or 1)
        own["OMP_NUM_THREADS"] = str(max(1, engine.num_cpus // ranks))
    return {**own, **job.environment}


def gpu_request(ids: Sequence[str]) -> DeviceRequest:
    """Return the request for these GPUs to NVIDIA's container toolkit."""
    return DeviceRequest(device_ids=list(ids), capabilities=[["gpu"]])


def _binds(job: LocalJob, places: Places) -> list[Bind]:
    checkpoints, data = CONTAINER_ROOT / job.checkpoint_folder, CONTAINER_ROOT / "input" / "data"
    return [
        _bind(places.tree, CONTAINER_ROOT, writable=True),
        _bind(places.checkpoints, checkpoints, writable=True),
        *(_bind(each.source, data / each.name, writable=each.writable) for each in places.mounts),
    ]


def _bind(source: Path, target: PurePosixPath, *, writable: bool) -> Bind:
    return Bind(target=str(target), source=str(source), type="bind", read_only=not writable)


def _identity(engine: Engine, owner: Owner) -> dict[str, Any]:
    """Return the options with which files in the container belong to the user who runs the job."""
    unlabelled = {"security_opt": ["label=disable"]} if engine.labels_files else {}
    if engine.is_rootless:  # root in the container is that user
        return {"user": "0:0", **unlabelled}
    identity: dict[str, Any] = {
        **unlabelled,
        "user": f"{owner.uid}:{owner.gid}",
        "group_add": [str(group) for group in owner.groups if group != owner.gid],
    }
    return {**identity, "userns_mode": "host"} if engine.is_remapped else identity
