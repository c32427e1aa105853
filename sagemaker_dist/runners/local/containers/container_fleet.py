# SPDX-License-Identifier: Apache-2.0
"""Hosts as containers of one Docker engine, on a Docker network of their own.

    sagemaker-dist-JOB            network
    sagemaker-dist-JOB-algo-1     container; output -> pipe -> the supervisor
    sagemaker-dist-JOB-algo-2

Containers and network have the path of the job's folder as a label. If the supervisor was killed,
`sweep` finds them by this label and removes them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docker.errors import APIError, DockerException, NotFound

from sagemaker_dist.packaging.docker_engine import Engine, connect
from sagemaker_dist.packaging.docker_errors import refusal
from sagemaker_dist.planning import LocalHost, LocalJob
from sagemaker_dist.planning.local_job import divide_gpus
from sagemaker_dist.runners.local.containers.container_arguments import (
    FOLDER_LABEL,
    Owner,
    Places,
    container_arguments,
    gpu_request,
)
from sagemaker_dist.runners.local.containers.container_host import BROKEN, ContainerHost
from sagemaker_dist.runners.local.containers.docker_network import JobNetwork
from sagemaker_dist.runners.local.containers.nvidia_gpus import list_gpus
from sagemaker_dist.runners.local.data.channels import Data
from sagemaker_dist.runners.local.fleet import Host
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.opt_ml_tree import HostTree
from sagemaker_dist.runners.local.output import Output

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

_REMOVAL_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
_CONFLICT: Final = 409  # HTTP


@dataclass(slots=True)
class ContainerFleet:
    """All hosts of a job as containers, with the network that connects them."""

    folder: JobFolder
    job: LocalJob
    data: Data
    owner: Owner = field(default_factory=Owner.current)
    hosts: list[ContainerHost] = field(default_factory=list)
    _client: DockerClient | None = None
    _network: JobNetwork | None = None
    _gpus: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> list[ContainerHost]:
        """Create the network, create and start one container per host, and return the hosts.

        Raises:
            SetupError: The Docker engine refuses, or does not answer.
        """
        self._client = client = connect()
        engine = Engine.of(client)
        gpus: tuple[tuple[str, ...], ...] = ((),) * len(self.job.hosts)
        if self.job.instance_type == "local_gpu":
            gpus = divide_gpus(list_gpus(), len(self.job.hosts))
        with self._refusals("the network of the job cannot be created", engine):
            self._network = JobNetwork.create(client, self.job, self.folder.path)
        for host, ids in zip(self.job.hosts, gpus, strict=True):
            self._gpus[host.label] = ids
            tree = HostTree(self.folder.hosts / host.label)
            with self._refusals(f"the container of {host.label} cannot be started", engine):
                tree.create(self.job, host, self.folder)
                self.data.open_pipes(host, tree)
                container = self._create(client, host, engine)
                self.hosts.append(self._start(container, host, engine))
        return list(self.hosts)

    def replace(self, host: Host) -> ContainerHost:
        """Remove the container of a host that was killed, and start another one in its place.

        Raises:
            SetupError: The Docker engine refuses, or does not answer.
        """
        assert isinstance(host, ContainerHost)
        assert self._client
        with self._refusals(f"the container of {host.place.label} cannot be started", host.engine):
            _remove(host.container)
            host.tree.renew(self.folder)
            container = self._create(self._client, host.place, host.engine)
            found = self._start(container, host.place, host.engine)
        self.hosts[self.hosts.index(host)] = found
        return found

    def _create(self, client: DockerClient, host: LocalHost, engine: Engine) -> Container:
        assert self._network
        tree = HostTree(self.folder.hosts / host.label)
        gpus = self._gpus[host.label]
        mounts = tuple(self.data.mounts(host))
        tree.make_mount_points(self.job, [mount.name for mount in mounts])
        places = Places(
            folder=self.folder.path,
            tree=tree.root,
            checkpoints=self.folder.checkpoints(self.job).resolve(),
            mounts=mounts,
        )
        return client.containers.create(
            **container_arguments(self.job, host, places, engine, self.owner),
            **self._network.arguments(client, host),
            device_requests=[gpu_request(gpus)] if gpus else None,
        )

    def _start(self, container: Container, host: LocalHost, engine: Engine) -> ContainerHost:
        """Start the container of `host`, and the threads that follow its output and its end.

        The stream of output is attached before the start, so that no output is lost. `engine` has
        facts about the Docker engine, for errors.
        """
        source, sink = os.pipe()
        output = Output.of(source, host.label, self.folder)
        tree = HostTree(self.folder.hosts / host.label)
        running = ContainerHost(host, tree, output, container, engine)
        stream = container.attach(stream=True, stdout=True, stderr=True)
        container.start()
        self._threads += running.follow(stream, sink)
        return running

    def kill(self) -> None:
        """Kill every container that runs, with all its processes."""
        for host in self.hosts:
            if host.code is None:
                host.kill()

    def remove(self) -> None:
        """Remove the job's containers and network, also after a failed start."""
        if self._client is None:
            return
        with contextlib.suppress(*BROKEN):
            remove_all(self._client, self.folder.path)
        for host in self.hosts:
            host.close()  # ends also a thread that waits because its pipe is full
        for thread in self._threads:
            thread.join(timeout=10)
        self._client.close()
        self._client = None

    @contextlib.contextmanager
    def _refusals(self, what: str, engine: Engine) -> Iterator[None]:
        try:
            yield
        except DockerException as error:
            raise refusal(what, error, image=self.job.image, data_root=engine.data_root) from error


def _remove(container: Container) -> None:
    """Remove a container, and wait until its name and address are free.

    Raises:
        docker.errors.APIError: The engine refuses, or somebody else's removal takes too long.
    """
    deadline = time.monotonic() + _REMOVAL_SECONDS
    while True:
        try:
            container.remove(force=True, v=True)
        except NotFound:
            return
        except APIError as error:  # such as a conflict with a removal that is under way
            if error.status_code != _CONFLICT or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


def remove_all(client: DockerClient, folder: Path) -> None:
    """Remove all containers and networks of the job in `folder`, even if containers still run."""
    own: dict[str, Any] = {"label": f"{FOLDER_LABEL}={folder}"}
    for container in client.containers.list(all=True, filters=own, ignore_removed=True):
        with contextlib.suppress(APIError):
            container.remove(force=True, v=True)
    for network in client.networks.list(filters=own):
        with contextlib.suppress(APIError):
            network.remove()


def sweep(client: DockerClient, is_over: Callable[[Path], bool]) -> None:
    """Remove containers and networks of jobs that have ended, left by supervisors that were killed.

    `is_over` is a function that returns whether the job in a folder has ended.
    """
    with contextlib.suppress(*BROKEN):
        everything = [
            *client.containers.list(all=True, filters={"label": FOLDER_LABEL}, ignore_removed=True),
            *client.networks.list(filters={"label": FOLDER_LABEL}),
        ]
        for folder in {_folder_of(each) for each in everything}:
            with contextlib.suppress(OSError, ValueError):  # not readable, or broken
                if is_over(folder):
                    remove_all(client, folder)


def _folder_of(thing: Any) -> Path:
    labels = thing.attrs.get("Labels") or thing.attrs["Config"]["Labels"]
    return Path(labels[FOLDER_LABEL])
