# SPDX-License-Identifier: Apache-2.0
"""Pure functions that list a host's TensorFlow processes, with their commands and environments.

    DataParallel()                    processes_per_host ranks of the script on every host
    multi_worker_mirrored_strategy    one rank on every host, a "worker" in TF_CONFIG
    parameter_server                  two TensorFlow servers on every host, a "worker" and a
                                      "ps", and the script as "chief" on the first host

With TF_CONFIG each task of the job has a port of its own, from MASTER_PORT + 1 upwards. Different
ports are needed because emulated hosts share one machine, and a TensorFlow server listens on all
addresses of its machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.contract import World
from smdist.config import RuntimeConfig
from smdist.launch.host_resolution import listening_address
from smdist.launch.launch_command import plain_command

MIRRORED: Final = "multi_worker_mirrored_strategy"
SERVERS: Final = "parameter_server"
_SERVER: Final = ("-m", "smdist.dataparallel.task_server")
_NO_GPU: Final = {"CUDA_VISIBLE_DEVICES": ""}  # TensorFlow would take all visible GPUs
_SERVING: Final[Mapping[str, Mapping[str, str]]] = {
    "ps": _NO_GPU,
    "worker": {},
}  # kinds of servers, with variables that only they get; "worker" computes and keeps its GPUs
_FILE: Final = "tasks.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One TensorFlow process of this host.

    Attributes:
        command: Command line that starts the process, through a parent process that watches it.
        environ: Variables that this process gets in addition to the host's environment.
        is_server: True for a TensorFlow server, which ends when the script on the first host has
            ended.
    """

    command: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)
    is_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """All TensorFlow processes of one host.

    Attributes:
        each: The processes, in the order in which they start.
        ports: Ports that this host's processes listen on.
        result_port: Port on which the first host listens for connections of the servers, which
            wait for the script's end. None on other hosts, and for a job without servers.
        result_address: IP address at which it listens; "" for all addresses of the host.
        num_servers: Number of TensorFlow servers in the job, on all hosts together.
    """

    each: tuple[Task, ...]
    ports: tuple[int, ...] = ()
    result_port: int | None = None
    result_address: str = ""
    num_servers: int = 0

    def write(self, directory: Path) -> Path:
        """Write the tasks to tasks.json in `directory`, for the task starter; return its path."""
        path = directory / _FILE
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Tasks:
        """Read the tasks from the file that `write` wrote."""
        parts = json.loads(path.read_text(encoding="utf-8"))
        each = tuple(Task(**{**task, "command": tuple(task["command"])}) for task in parts["each"])
        return cls(**{**parts, "each": each, "ports": tuple(parts["ports"])})


def tasks_of(
    config: RuntimeConfig, world: World, addresses: Mapping[str, str], script: Sequence[str]
) -> Tasks:
    """Return the TensorFlow processes of this host.

    Args:
        config: This host's configuration, with data parallel options.
        world: All hosts, and the number of ranks on each.
        addresses: IP address of each host, by name.
        script: Path of the script and its arguments.
    """
    if config.strategy == SERVERS:
        return _servers(config, world, addresses, script)
    ranks = _ranks(config, world, addresses, script)
    if config.strategy != MIRRORED:
        return Tasks(each=ranks)
    cluster = {"worker": _places(world, addresses, config.port + 1)}
    index = world.hosts.index(config.resources.current_host)
    rank = ranks[0]
    environ = {**rank.environ, "TF_CONFIG": _tf_config(cluster, "worker", index)}
    return Tasks(
        each=(Task(command=rank.command, environ=environ),),
        ports=(config.port + 1 + index,),
    )


def _ranks(
    config: RuntimeConfig, world: World, addresses: Mapping[str, str], script: Sequence[str]
) -> tuple[Task, ...]:
    shared = {
        "WORLD_SIZE": world.size,
        "LOCAL_WORLD_SIZE": world.processes_per_host,
        "MASTER_ADDR": addresses[world.hosts[0]],
        "MASTER_PORT": config.port,
    }
    host = config.resources.current_host
    return tuple(
        Task(
            command=tuple(plain_command(script)),
            environ=_texts({"RANK": world.rank(host, local), "LOCAL_RANK": local, **shared}),
        )
        for local in range(world.processes_per_host)
    )


def _servers(
    config: RuntimeConfig, world: World, addresses: Mapping[str, str], script: Sequence[str]
) -> Tasks:
    first, size = config.port + 1, len(world.hosts)
    cluster = {
        "chief": [f"{addresses[world.hosts[0]]}:{first}"],
        "worker": _places(world, addresses, first + 1),
        "ps": _places(world, addresses, first + 1 + size),
    }
    index = world.hosts.index(config.resources.current_host)
    result_address = f"{addresses[world.hosts[0]]}:{config.port}"
    label = world.label(config.resources.current_host)
    assert config.options
    timeout = str(config.options.start_timeout_seconds)
    each = [
        Task(
            command=tuple(
                plain_command([*_SERVER, f"{label} {kind} {index}", result_address, timeout])
            ),
            environ={
                "TF_CONFIG": _tf_config(cluster, kind, index),
                "SMDIST_HOST_LABEL": f"{label} {kind} {index}",
                **further,
            },
            is_server=True,
        )
        for kind, further in _SERVING.items()
    ]
    ports = [first + 1 + index, first + 1 + size + index]
    if index:
        return Tasks(each=tuple(each), ports=tuple(ports))
    chief = {"TF_CONFIG": _tf_config(cluster, "chief", 0), **_NO_GPU}
    each.append(Task(command=tuple(plain_command(script)), environ=chief))
    return Tasks(
        each=tuple(each),
        ports=(first, *ports),
        result_port=config.port,
        result_address=listening_address(world, addresses),
        num_servers=2 * size,
    )


def _places(world: World, addresses: Mapping[str, str], first_port: int) -> list[str]:
    return [f"{addresses[host]}:{first_port + i}" for i, host in enumerate(world.hosts)]


def _tf_config(cluster: Mapping[str, Any], kind: str, index: int) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}
