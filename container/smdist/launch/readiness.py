# SPDX-License-Identifier: Apache-2.0
"""Checks before ranks start, of faults that ranks would report late or in a traceback."""

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
    """Check that the framework is installed; requirements.txt may have added it.

    Returns the framework of the ranks: the requested one, else torch before TensorFlow.

    Raises:
        LaunchError: The framework that the ranks need is not installed.
    """
    asked = python_command("-c", _FINDS)
    done = subprocess.run(asked, env=dict(environ), stdout=subprocess.PIPE, text=True, check=False)
    found = done.stdout.split()
    wanted = framework or next(iter(found), None)
    if wanted in found:
        return str(wanted)
    raise LaunchError(
        "the ranks cannot be started",
        f"they train with {wanted}, and {wanted} is not installed in this image"
        if wanted
        else "neither torch nor tensorflow is installed in this image",
        f"Use an image with {wanted or 'one of them'}, or leave distribution out for one plain"
        " process per host",
    )


def require_port(port: int, label: str) -> None:
    """Bind the port of this host's ranks for a moment.

    Raises:
        LaunchError: The port is in use, or this user may not bind it.
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
    """Describe the process that listens on the port, as far as /proc shows it to this user."""
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
