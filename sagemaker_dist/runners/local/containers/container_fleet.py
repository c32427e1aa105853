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
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import ReadTimeout, RequestException

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

_STARTUP_SECONDS: Final = 2.0  # time for Python to start and install its signal handlers
_LOST: Final = 255  # exit status if the engine no longer knows the container's
_REMOVAL_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
_CONFLICT: Final = 409  # HTTP
_BROKEN: Final = (DockerException, RequestException, OSError)


@dataclass(slots=True)
class ContainerHost:
    """A host of a local job that runs in a container.

    A thread copies the container's output into a pipe, and then stores the exit status. The
    supervisor's selector reads the pipe. Thread safety: the thread writes `code` and `lost` before
    it closes the pipe; only the supervisor reads them.

    Attributes:
        code: Exit status; None while the container runs.
        lost: Why the engine could not report the exit status, or "".
        started_seconds: Time of the start on the monotonic clock.
    """

    place: LocalHost
    tree: HostTree
    output: Output
    container: Container
    engine: Engine
    was_stopped: bool = False
    code: int | None = None
    lost: str = ""
    closed: bool = False
    started_seconds: float = field(default_factory=time.monotonic)

    def fileno(self) -> int:
        """Return the file descriptor of the host's output, the read end of the pipe."""
        return self.output.source

    def poll(self) -> int | None:
        """Return the exit status of the container, or None while it runs."""
        return self.code

    def terminate(self) -> None:
        """Send SIGTERM to the container's first process, as `docker stop` does, without waiting.

        If the container is younger than two seconds, the signal is sent when it reaches that age:
        Linux drops a signal to a first process that has no handler for it yet.
        """
        self.was_stopped = True
        wait_seconds = max(0.0, self.started_seconds + _STARTUP_SECONDS - time.monotonic())
        timer = threading.Timer(wait_seconds, self._signal, ["SIGTERM"])
        timer.daemon = True
        timer.start()

    def kill(self) -> None:
        """Send SIGKILL to every process of the container."""
        self._signal("SIGKILL")

    def close(self) -> None:
        """Write the rest of the output to the logs and close the pipe; later calls do nothing."""
        if not self.closed:
            self.closed = True
            self.output.drain()
            os.close(self.output.source)

    def ending(self, code: int) -> str:
        """Return a sentence on how the container ended, with its exit status or the likely cause.

        `code` is the exit status that `poll` returned.
        """
        container = f"The container of {self.place.label}"
        if self.lost:
            return f"The Docker engine lost the container of {self.place.label}: {self.lost}."
        if code == 128 + signal.SIGKILL:
            return f"{container} was killed by SIGKILL.{self._memory_hint()}"
        if code in {1, 255} and self._is_foreign():
            return (
                f"{container} could not run: its image is built for {self._image_architecture()},"
                f" but this machine's processor is {self.engine.architecture}."
                " Build the image on this machine: sagemaker-dist image build."
            )
        return f"{container} exited with code {code} and gave no reason."

    def _signal(self, name: str) -> None:
        with contextlib.suppress(*_BROKEN):  # the container has ended, or the engine has stopped
            self.container.kill(signal=name)

    def _memory_hint(self) -> str:
        with contextlib.suppress(*_BROKEN):
            self.container.reload()
            if self.container.attrs["State"].get("OOMKilled"):
                return " It ran out of memory."
        return " It may have run out of memory, or was killed by a user."

    def _image_architecture(self) -> str:
        with contextlib.suppress(*_BROKEN):
            image = self.container.image
            return str(image.attrs["Architecture"]) if image else self.engine.architecture
        return self.engine.architecture

    def _is_foreign(self) -> bool:
        return self._image_architecture() != self.engine.architecture


def _follow(host: ContainerHost, stream: Any, sink: int) -> None:
    """Copy a container's output into a pipe; then store the container's exit status in `host`.

    This runs in a thread, until the container ends. `stream` yields the output as bytes. `sink` is
    the write end of the pipe; it is closed last.
    """
    try:
        for data in stream:
            _write_all(sink, data)
        host.code = _wait(host.container)
    except Exception as error:
        host.lost = " ".join(str(error).split())
        host.code = _LOST
    finally:
        os.close(sink)


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


def _wait(container: Container) -> int:
    while True:
        with contextlib.suppress(ReadTimeout):
            return int(container.wait()["StatusCode"])


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
        """Start the container of `host`, and a thread that copies its output.

        The thread's stream is attached before the start, so that no output is lost. `engine` has
        facts about the Docker engine, for errors.
        """
        source, sink = os.pipe()
        output = Output.of(source, host.label, self.folder)
        tree = HostTree(self.folder.hosts / host.label)
        running = ContainerHost(host, tree, output, container, engine)
        stream = container.attach(stream=True, stdout=True, stderr=True)
        container.start()
        thread = threading.Thread(target=_follow, args=(running, stream, sink), daemon=True)
        thread.start()
        self._threads.append(thread)
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
        with contextlib.suppress(*_BROKEN):
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
    with contextlib.suppress(*_BROKEN):
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
