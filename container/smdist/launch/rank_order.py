# SPDX-License-Identifier: Apache-2.0
"""Orders to start this host's ranks: once, again after a failure, or as an elastic job."""

from __future__ import annotations

from pathlib import Path

from sagemaker_dist.contract import DataParallel
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.launch.attempt_loop import AttemptPlan
from smdist.launch.elastic.agent import ElasticPlace
from smdist.launch.environment import (
    call_arguments,
    quiet_environment,
    rank_environment,
    sm_environment,
)
from smdist.launch.host_place import HostPlace, launcher_port
from smdist.launch.host_resolution import listening_address
from smdist.launch.job_attempts import RestartRules
from smdist.launch.launch_command import plain_command, starter_command, torchrun_command
from smdist.launch.readiness import require_port
from smdist.launch.supervise import Order
from smdist.launch.take_secret import hand_over_attempt
from smdist.launch.tf_tasks import tasks_of
from smdist.restart_environment import replaces_hosts


def rank_order(
    place: HostPlace, addresses: dict[str, str], script: Path, directory: Path, attempt: int = 0
) -> Order:
    """Return the command, environment and time limits of this host's ranks; starts nothing.

    Args:
        place: This host's configuration and the world of ranks.
        addresses: IP address of each host, by name.
        script: Path of the user's script.
        directory: An empty directory for the files of this run.
        attempt: Number of times that the ranks were started again.

    Raises:
        LaunchError: A port that TensorFlow's servers need is in use.
    """
    config, world = hand_over_attempt(place.config, attempt, directory), place.world
    call = [str(script), *call_arguments(config)]
    starter = "torchrun"
    if config.options and config.framework == "tensorflow":
        tasks = tasks_of(config, world, addresses, call)
        for port in tasks.ports:
            require_port(port, place.label)
        starter, command = "the starter", starter_command(tasks.write(directory))
    elif config.options:
        command = torchrun_command(
            config, world, addresses, call, directory / "torchrun", attempt=attempt
        )
    else:
        command = plain_command(call)
    environ = {
        **config.inherited,
        **sm_environment(config, place.machine, world),
        **rank_environment(config, place.machine, world, addresses, attempt),
        **quiet_environment(config),
        "SMDIST_GUARD_DIRECTORY": str(config.code),
    }
    return Order(
        command=tuple(command),
        environ=environ,
        directory=directory,
        label=place.label,
        stop_seconds=config.stop_seconds,
        starter=starter,
    )


def attempt_plan(
    place: HostPlace, addresses: dict[str, str], script: Path, first: Order
) -> AttemptPlan:
    """Return all that this host needs to start its ranks again after a failure.

    `first` is the command of the first attempt.
    """
    config, world = place.config, place.world
    assert config.options

    def order(attempt: int, directory: Path) -> Order:
        return rank_order(place, addresses, script, directory, attempt) if attempt else first

    path = Path(config.secret_file) if config.secret_file else None
    checkpoints = config.inherited.get("SM_CHECKPOINT_DIR") or config.base / "checkpoints"
    return AttemptPlan(
        rules=RestartRules(
            hosts=tuple(map(world.label, world.hosts)),
            max_restarts=config.options.max_restarts,
            start_timeout_seconds=config.options.start_timeout_seconds,
            replaces_hosts=replaces_hosts(config.inherited),
        ),
        host=place.label,
        order=order,
        directory=first.directory,
        base=config.base,
        checkpoints=Path(checkpoints),
        address=(addresses[world.hosts[0]], launcher_port(config.port, len(world.hosts), 1)),
        listening_address=listening_address(world, addresses),
        secret=read_secret(path) or b"",
    )


def elastic_place(
    place: HostPlace, least: int, addresses: dict[str, str], directory: Path
) -> ElasticPlace:
    """Return the place of this host in an elastic job.

    Args:
        place: This host's configuration and the world of ranks.
        least: Least number of hosts with which training goes on.
        addresses: IP address of each host, by name.
        directory: A private directory for the files of this run.
    """
    config, world = place.config, place.world
    options = config.options or DataParallel()
    file = Path(config.secret_file) if config.secret_file else None
    return ElasticPlace(
        me=world.hosts.index(config.resources.current_host),
        labels=tuple(map(world.label, world.hosts)),
        addresses=tuple(addresses[host] for host in world.hosts),
        port=launcher_port(config.port, len(world.hosts), 3),
        least=least,
        local_size=world.processes_per_host,
        start_timeout_seconds=options.start_timeout_seconds,
        timeout_seconds=options.timeout_seconds,
        socket=directory / "elastic.sock",
        secret=read_secret(file, config.secret),
    )
