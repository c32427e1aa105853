# SPDX-License-Identifier: Apache-2.0
"""Connection to this machine's Docker engine through docker-py."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sagemaker_dist.errors import SetupError

if TYPE_CHECKING:
    from docker import DockerClient

TIMEOUT_SECONDS: Final = 120
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # uname's names -> names in images
_SOCKET: Final = "unix:///var/run/docker.sock"  # docker-py's own default
_START: Final = "Start it (`systemctl start docker`, or Docker Desktop)"
_JOIN: Final = "Join the group docker (`sudo usermod -aG docker $USER`) and log in again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Facts about the Docker engine and its machine.

    Attributes:
        num_cpus: Number of CPUs of the engine's machine.
        memory_bytes: Memory of the engine's machine.
        architecture: Architecture as images name it: "amd64", "arm64".
        data_root: Directory of the engine's images and containers.
        is_rootless: True if root in a container is the user who runs the engine.
        is_remapped: True if users have other ids in a container than outside (userns-remap).
        labels_files: True if the engine uses SELinux. Then containers can read only those files of
            this machine that have a label for containers.
        is_desktop: True if the engine is Docker Desktop, which uses a virtual machine.
    """

    num_cpus: int
    memory_bytes: int
    architecture: str
    data_root: str
    is_rootless: bool = False
    is_remapped: bool = False
    labels_files: bool = False
    is_desktop: bool = False

    @classmethod
    def of(cls, client: DockerClient) -> Engine:
        """Return the facts about the engine of a client, as the engine reports them."""
        info = client.info()
        security = " ".join(info.get("SecurityOptions") or [])
        return cls(
            num_cpus=info["NCPU"],
            memory_bytes=info["MemTotal"],
            architecture=_ARCHITECTURES.get(info["Architecture"], info["Architecture"]),
            data_root=info["DockerRootDir"],
            is_rootless="name=rootless" in security,
            is_remapped="name=userns" in security,
            labels_files="name=selinux" in security,
            is_desktop=str(info.get("OperatingSystem", "")).startswith("Docker Desktop"),
        )


def address() -> str:
    """Return the address of the Docker engine: the variable DOCKER_HOST, or docker-py's default."""
    return os.environ.get("DOCKER_HOST") or _SOCKET


@contextmanager
def connected() -> Iterator[DockerClient]:
    """Yield a client of the engine at DOCKER_HOST or the default socket, and close it at the end.

    Raises:
        SetupError: docker-py is not installed, or no engine answers.
    """
    client = connect()
    try:
        yield client
    finally:
        client.close()


def connect() -> DockerClient:
    """Return a client of the engine at DOCKER_HOST or the default socket; the caller closes it.

    Raises:
        SetupError: docker-py is not installed, or no engine answers.
    """
    try:
        import docker
    except ImportError:
        raise SetupError(
            "docker-py is not installed",
            "sagemaker_dist uses docker-py to control Docker",
            "In a clone of sagemaker-dist, run: pip install '.[docker]'",
            kind="no_docker_py",
        ) from None
    _check_socket(address())
    try:
        client = docker.from_env(timeout=TIMEOUT_SECONDS)
    except (docker.errors.DockerException, OSError, ValueError) as error:
        raise _no_engine(error) from error
    try:
        client.ping()
    except (docker.errors.DockerException, OSError) as error:
        client.close()
        raise _no_engine(error) from error
    return client


def _check_socket(where: str) -> None:
    """Check that the Docker engine's Unix socket can be opened; do nothing for a TCP address.

    `where` is the address of the engine, such as "unix:///var/run/docker.sock".

    Raises:
        SetupError: The socket cannot be opened. The error gives the reason, such as "Permission
            denied", which docker-py's own error does not give.
    """
    place = urlsplit(where)
    if place.scheme != "unix" or sys.platform == "win32":
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(place.path)
        except OSError as error:
            raise _no_engine(OSError(f"{place.path}: {error.strerror}")) from error


def _no_engine(error: Exception) -> SetupError:
    why = str(error)
    is_denied = "Permission denied" in why
    hint = _JOIN if is_denied else _START
    return SetupError(
        "no Docker engine answers",
        why,
        f"{hint}, or set DOCKER_HOST to the address of another engine",
        kind="access_denied" if is_denied else "no_engine",
    )
