# SPDX-License-Identifier: Apache-2.0
"""What is asked of Docker for one host: pure, so that it can be printed and tested.

/opt/ml              the host's tree, so that all it writes stays on this machine
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

from sagemaker_dist.packaging.engine import Engine
from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.planning.local_job import CONTAINER_ROOT
from sagemaker_dist.runners.local.data.channels import Mount
from sagemaker_dist.runners.local.tree import sagemaker_environment

FOLDER_LABEL: Final = "sagemaker-dist.job-folder"  # whose containers and network these are
HOST_LABEL: Final = "sagemaker-dist.host"
_LOGS: Final = {"max-size": "10m", "max-file": "1"}  # the job keeps its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The user of this machine for whom the job runs.

    Attributes:
        groups: By which data may be readable to that user.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def current(cls) -> Owner:
        """Whoever runs this process."""
        return cls(uid=os.getuid(), gid=os.getgid(), groups=tuple(os.getgroups()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the parts of one host lie on this machine.

    Attributes:
        folder: The job's, which labels what belongs to it.
        tree: What becomes /opt/ml.
        checkpoints: What all hosts share.
        mounts: The data.
    """

    folder: Path
    tree: Path
    checkpoints: Path
    mounts: tuple[Mount, ...] = ()


def network_name(job: LocalJob) -> str:
    """The network that the hosts of one job have to themselves."""
    return f"sagemaker-dist-{job.name}"


def container_arguments(
    job: LocalJob, host: LocalHost, places: Places, engine: Engine, owner: Owner
) -> dict[str, Any]:
    """The arguments of `client.containers.create`, without network and GPUs.

    Shared memory may take half of the machine's, as on a Linux host: tmpfs uses
    what is written, and Docker's own 64 MB end most data loaders.
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
    """SageMaker's variables, then the user's; nothing of this machine's, above all no credentials.

    Hosts share one machine's CPUs, which no launcher in a container can see.
    """
    own = sagemaker_environment(job, host)
    if job.has_world:
        ranks = len(job.hosts) * (job.processes_per_host or 1)
        own["OMP_NUM_THREADS"] = str(max(1, engine.num_cpus // ranks))
    return {**own, **job.environment}


def gpu_request(ids: Sequence[str]) -> DeviceRequest:
    """These GPUs, in the words of NVIDIA's container toolkit."""
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
    """Whatever a container writes belongs to the user who called `fit`."""
    unlabelled = {"security_opt": ["label=disable"]} if engine.labels_files else {}
    if engine.is_rootless:  # its root is that user
        return {"user": "0:0", **unlabelled}
    identity: dict[str, Any] = {
        **unlabelled,
        "user": f"{owner.uid}:{owner.gid}",
        "group_add": [str(group) for group in owner.groups if group != owner.gid],
    }
    return {**identity, "userns_mode": "host"} if engine.is_remapped else identity
