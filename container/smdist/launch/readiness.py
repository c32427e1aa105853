# SPDX-License-Identifier: Apache-2.0
"""Checks before ranks start: the framework is installed, and the port is free.

Without these checks the ranks would fail later, each with a traceback.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Mapping

from sagemaker_dist.errors import LaunchError
from smdist.launch.launch_command import python_command

_FINDS = """
from importlib.util import find_spec
print(*(name for name in ("torch", "tensorflow") if find_spec(name) is not None))
"""


def require_framework(framework: str | None, environ: Mapping[str, str]) -> str:
    """Check that the ranks' framework is installed; return its name, "torch" or "tensorflow".

    The check runs in a new Python process, because requirements.txt may just have installed it.

    Args:
        framework: The requested framework; None for torch if it is installed, else TensorFlow.
        environ: Environment of the new Python process.

    Raises:
        LaunchError: The framework that the ranks need is not installed.
    """
    find = python_command("-c", _FINDS)
    done = subprocess.run(find, env=dict(environ), stdout=subprocess.PIPE, text=True, check=False)
    found = done.stdout.split()
    wanted = framework or next(iter(found), None)
    if wanted in found:
        return str(wanted)
    raise LaunchError(
        "the ranks cannot be started",
        f"they train with {wanted}, and {wanted} is not installed in this image"
        if wanted
        else "neither torch nor tensorflow is installed in this image",
        f"Use an image with {wanted or 'torch or tensorflow'}, or leave distribution out to run"
        " one plain process per host",
        about="framework",
        kind="missing",
    )


def require_port(port: int, label: str, address: str = "") -> None:
    """Check that a port is free, by listening on it for a moment.

    Args:
        port: The port.
        label: Name of this host in the error.
        address: IP address at which the port must be free; "" for all addresses of this host.

    Raises:
        LaunchError: Another process uses the port, or this user is not allowed to use it.
    """
    both = not address and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server((address, port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        owner = _listener(port)
        raise LaunchError(
            f"the ranks cannot use port {port} of {label}",
            f"{owner} listens on it" if owner else error.strerror or str(error),
            "Set the environment variable SMDIST_MASTER_PORT to a free port above 1023, with the"
            " same value on all hosts of the job",
            about="SMDIST_MASTER_PORT",
            kind="conflict",
        ) from error


def _listener(port: int) -> str:
    """Return name and number of the process that listens on the port, or "" if they are unknown.

    They are unknown for many processes of other users, which /proc does not show to this user.
    """
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
