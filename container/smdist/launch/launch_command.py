# SPDX-License-Identifier: Apache-2.0
"""Pure functions that return the command lines with which a host starts its ranks."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from sagemaker_dist.contract import World
from smdist.config import RuntimeConfig
from smdist.launch.host_resolution import listening_address

GUARD = ("-m", "smdist.launch.rank_guard")
STARTER = ("-m", "smdist.launch.task_starter")
TORCHRUN = ("-m", "smdist.dataparallel.torchrun")


def python_command(*arguments: str) -> list[str]:
    """Return the command that runs this Python interpreter with `arguments`."""
    return [sys.executable, *arguments]


def plain_command(script: Sequence[str]) -> list[str]:
    """Return the command that runs the script as one process.

    The command starts a guard, a small parent process that watches the script. `script` is the path
    of the script and its arguments.
    """
    return python_command(*GUARD, *script)


def starter_command(tasks: Path) -> list[str]:
    """Return the command that starts TensorFlow's processes listed in the JSON file `tasks`."""
    return python_command(*STARTER, str(tasks))


def torchrun_command(
    config: RuntimeConfig,
    world: World,
    addresses: Mapping[str, str],
    script: Sequence[str],
    logs: Path,
    *,
    attempt: int = 0,
) -> list[str]:
    """Return the torchrun command that starts this host's ranks.

    Each rank runs as the child of a rank guard, a small process that watches the rank.
    torchrun waits `start_timeout_seconds` for the other hosts. Its store listens at one address of
    the first host alone.

    Args:
        config: This host's configuration, with data parallel options.
        world: All hosts, and the number of ranks on each.
        addresses: IP address of each host, by name.
        script: Path of the script and its arguments, which the script receives unchanged.
        logs: Directory for torchrun's logs.
        attempt: Number of times that the ranks were started again. Each attempt has keys of its own
            in torchrun's store.
    """
    assert config.options
    host = config.resources.current_host
    rendezvous = [
        f"rank={world.hosts.index(host)}",
        f"timeout={config.options.start_timeout_seconds}",
        f"hosts={'|'.join(map(world.label, world.hosts))}",
        f"ranks_per_host={world.processes_per_host}",
    ]
    if address := listening_address(world, addresses):
        rendezvous.append(f"listen={address}")
    options = {
        "nnodes": len(world.hosts),
        "nproc-per-node": world.processes_per_host,
        "rdzv-id": f"attempt-{attempt}",
        "rdzv-backend": "smdist",
        "rdzv-endpoint": f"{addresses[world.hosts[0]]}:{config.port}",
        "rdzv-conf": ",".join(rendezvous),
        "local-addr": addresses[host],
        "max-restarts": 0,
        "monitor-interval": 0.1,
        "log-dir": logs,
        "shutdown-timeout": math.ceil(config.stop_seconds),
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    guard = [_literal(part) for part in (*GUARD, *script)]
    return python_command(*TORCHRUN, *flags, "--no-python", "--", *python_command(*guard))


def _literal(argument: str) -> str:
    """Escape `$` as `$$`, because torchrun reads `$` as the start of a macro."""
    return argument.replace("$", "$$")
