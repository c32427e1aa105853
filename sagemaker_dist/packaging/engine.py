# SPDX-License-Identifier: Apache-2.0
"""The Docker engine of this machine, through docker-py: the one place that connects to it."""

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
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}  # uname's names -> images'
_SOCKET: Final = "unix:///var/run/docker.sock"  # docker-py's own default
_START: Final = "Start it (`systemctl start docker`, or Docker Desktop)"
_JOIN: Final = "Join the group docker (`sudo usermod -aG docker $USER`) and log in again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What the engine says of itself and its machine.

    Attributes:
        architecture: As images name it: "amd64", "arm64".
        data_root: Where it keeps images and containers.
        is_rootless: Root in a container is the user who runs the engine.
        is_remapped: Users in a container are others outside.
        labels_files: SELinux keeps containers from files that are not labelled for them.
        is_desktop: Docker Desktop, whose containers run in a virtual machine.
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
        """Ask the engine."""
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
    """Where the engine listens: what DOCKER_HOST says, or docker-py's default."""
    return os.environ.get("DOCKER_HOST") or _SOCKET


@contextmanager
def connected() -> Iterator[DockerClient]:
    """A client of the engine that DOCKER_HOST or the default socket names.

    Raises:
        SetupError: docker-py is not installed, or no engine answers.
    """
    client = connect()
    try:
        yield client
    finally:
        client.close()


def connect() -> DockerClient:
    """As `connected`; the caller closes it."""
    try:
        import docker
    except ImportError:
        raise SetupError(
            "docker-py is not installed",
            "sagemaker_dist talks to Docker through it",
            "In a clone of sagemaker-dist, run: pip install '.[docker]'",
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
    """Knock first: docker-py hides what is wrong with a socket in its own words."""
    place = urlsplit(where)
    if place.scheme != "unix" or sys.platform == "win32":
        return
    with socket.socket(socket.AF_UNIX) as visitor:
        try:
            visitor.connect(place.path)
        except OSError as error:
            raise _no_engine(OSError(f"{place.path}: {error.strerror}")) from error


def _no_engine(error: Exception) -> SetupError:
    why = str(error)
    mend = _JOIN if "Permission denied" in why else _START
    return SetupError("no Docker engine answers", why, f"{mend}, or set DOCKER_HOST to one")
