# SPDX-License-Identifier: Apache-2.0
"""Arguments with which Docker creates the container of one host, computed without calling Docker.

In the container:
/opt/ml              the host's directory in the job's folder
  input/data/NAME    a channel, read-only
  checkpoints        the checkpoints, which all hosts share

The processes get as few rights as a training needs. A user who is not root never has capabilities,
and gains none by a program such as sudo. Root keeps those by which it installs packages, starts
services as other users (sshd) and reads files of any owner; it cannot make device files, send raw
packets or trace processes of other users.
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

FOLDER_LABEL: Final = "sagemaker-dist.job-folder"  # label with the folder of the job
HOST_LABEL: Final = "sagemaker-dist.host"
MAX_TASKS: Final = 16_384  # processes and threads of one container; far more than ranks need
ROOT_CAPABILITIES: Final = (
    *("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL"),
    *("SETGID", "SETUID", "SYS_CHROOT", "AUDIT_WRITE"),  # sshd, su, apt-get
    "NET_BIND_SERVICE",
)
_LOGS: Final = {"max-size": "10m", "max-file": "1"}  # small: the job has its own logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """User of this machine who runs the job, by numeric ids.

    Attributes:
        groups: Ids of all groups of the user, through which the user may have access to the data.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @classmethod
    def current(cls) -> Owner:
        """Return the user who runs this process."""
        return cls(uid=os.getuid(), gid=os.getgid(), groups=tuple(os.getgroups()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Directories of this machine that one host's container uses.

    Attributes:
        folder: Folder of the job; its path becomes a label of the container.
        tree: Directory that is mounted as /opt/ml.
        checkpoints: Directory of checkpoints, which all hosts share.
        mounts: Data of the channels, which is mounted below /opt/ml/input/data.
    """

    folder: Path
    tree: Path
    checkpoints: Path
    mounts: tuple[Mount, ...] = ()


def network_name(job: LocalJob) -> str:
    """Return the name of the Docker network that connects a job's hosts."""
    return f"sagemaker-dist-{job.name}"


def container_arguments(
    job: LocalJob, host: LocalHost, places: Places, engine: Engine, owner: Owner
) -> dict[str, Any]:
    """Return the arguments of docker-py's `client.containers.create` for one host.

    The arguments for network and GPUs are left out. Shared memory (/dev/shm) may grow to half of
    the machine's memory, as on a Linux host. Docker's default of 64 MB is too small for most data
    loaders.

    Args:
        job: Plan of the job.
        host: The host that the container emulates.
        places: Directories to mount.
        engine: Facts about the Docker engine.
        owner: User as whom the container runs.
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
        "pids_limit": MAX_TASKS,
        **_identity(engine, owner),
        **_rights(engine, owner),
    }


def container_environment(job: LocalJob, host: LocalHost, engine: Engine) -> dict[str, str]:
    """Return the environment variables of a container: SageMaker's, and the job's own.

    Variables of this machine are left out, because some are credentials. If the job has ranks,
    OMP_NUM_THREADS is set to the CPUs of the Docker engine's machine, divided by the number of
    ranks on all hosts. The launcher in a container cannot compute this: it does not know that all
    hosts share these CPUs.
    """
    own = sagemaker_environment(job, host)
    if job.has_world:
        ranks = len(job.hosts) * (job.processes_per_host or 1)
        own["OMP_NUM_THREADS"] = str(max(1, engine.num_cpus // ranks))
    return {**own, **job.environment}


def gpu_request(ids: Sequence[str]) -> DeviceRequest:
    """Return docker-py's request for the NVIDIA GPUs with the UUIDs `ids`, for one container."""
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
    """Return the options of `containers.create` that make the container run as the user `owner`.

    The files that the container writes then belong to this user.
    """
    if engine.is_rootless:  # root in the container is the user who runs the engine
        return {"user": "0:0"}
    identity: dict[str, Any] = {
        "user": f"{owner.uid}:{owner.gid}",
        "group_add": [str(group) for group in owner.groups if group != owner.gid],
    }
    return {**identity, "userns_mode": "host"} if engine.is_remapped else identity


def _rights(engine: Engine, owner: Owner) -> dict[str, Any]:
    """Return the options of `containers.create` that limit what the container's processes may do.

    Where the engine uses SELinux, the container gets no label: it could not read the mounted files.
    """
    is_root = engine.is_rootless or owner.uid == 0
    unlabelled = ["label=disable"] if engine.labels_files else []
    return {
        "cap_drop": ["ALL"],
        "cap_add": list(ROOT_CAPABILITIES) if is_root else [],
        "security_opt": ["no-new-privileges", *unlabelled],
    }
