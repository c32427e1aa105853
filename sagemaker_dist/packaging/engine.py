# SPDX-License-Identifier: Apache-2.0
"""The Docker engine of this machine, through docker-py: the one place that connects to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from sagemaker_dist.errors import SetupError

if TYPE_CHECKING:
    from docker import DockerClient

TIMEOUT_SECONDS: Final = 120
_START: Final = "Start it (`systemctl start docker`, or Docker Desktop)"
_JOIN: Final = "Join the group docker (`sudo usermod -aG docker $USER`) and log in again"


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
            "Run: pip install 'sagemaker-dist[docker]'",
        ) from None
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


def _no_engine(error: Exception) -> SetupError:
    why = str(error)
    mend = _JOIN if "Permission denied" in why else _START
    return SetupError("no Docker engine answers", why, f"{mend}, or set DOCKER_HOST to one")
