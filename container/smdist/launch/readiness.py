# SPDX-License-Identifier: Apache-2.0
"""What torchrun would tell in a traceback or not for ten minutes is told before it starts."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping

from sagemaker_dist.errors import LaunchError
from smdist.launch.command import python_command

_FINDS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def require_torch(environ: Mapping[str, str]) -> None:
    """Ask as a rank would: requirements.txt may have brought it just now.

    Raises:
        LaunchError: Ranks are asked for and torch is not installed.
    """
    asked = python_command("-c", _FINDS_TORCH)
    if subprocess.run(asked, env=dict(environ), check=False).returncode:
        raise LaunchError(
            "the ranks cannot be started",
            "torchrun starts them, and torch is not installed in this image",
            "Use an image with torch, or leave distribution out for one plain process per host",
        )


def require_port(port: int, label: str) -> None:
    """Listen for a moment where the first host's torchrun will.

    Raises:
        LaunchError: The port is taken, or this user may not have it.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        owner = _listener(port)
        raise LaunchError(
            f"port {port} of {label} is not free for the ranks to meet",
            f"{owner} listens there" if owner else error.strerror or str(error),
            "Set the environment variable SMDIST_MASTER_PORT of the job, so for every host,"
            " to a free port above 1023",
        ) from error


def _listener(port: int) -> str:
    """Who has the port, as far as /proc tells this user."""
    import psutil

    try:
        found = {
            each.pid
            for each in psutil.net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
        }
        names = [f"{psutil.Process(pid).name()} (process {pid})" for pid in found if pid]
    except (psutil.Error, OSError):
        return ""
    return ", ".join(sorted(names))
