# SPDX-License-Identifier: Apache-2.0
"""Entry point `train`, which SageMaker runs in the container; also `python -m smdist.launch`.

Exit status: that of the rank that failed first; 128 + n after signal n; 1 when the host could
not start; 0 on success. SageMaker runs an image as `docker run <image> train`. An entry point of
the image therefore receives the argument "train".
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final

from sagemaker_dist.contract import DataParallel, World, host_faults
from sagemaker_dist.contract.model_parallel_ranks import split_faults
from sagemaker_dist.errors import DistError, LaunchError, raise_all
from smdist.config import RuntimeConfig, read_base, read_runtime_config
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.launch.attempt_loop import AttemptPlan, run_attempts, run_once
from smdist.launch.container_user import account_environment
from smdist.launch.elastic.agent import ElasticPlace
from smdist.launch.elastic_policy import run_elastic
from smdist.launch.environment import (
    call_arguments,
    quiet_environment,
    rank_environment,
    sm_environment,
    trainer_arguments,
)
from smdist.launch.failure_file import write_failure
from smdist.launch.host_resolution import listening_address, wait_for_hosts
from smdist.launch.host_watch import WatchPlace, watch_hosts
from smdist.launch.job_attempts import RestartRules
from smdist.launch.launch_command import plain_command, starter_command, torchrun_command
from smdist.launch.launch_request import resolve_request
from smdist.launch.machine import HostResources, inspect_machine
from smdist.launch.mpi_request import verbose_line
from smdist.launch.nonblocking_writer import write_whole
from smdist.launch.outcome import Outcome
from smdist.launch.private_folder import private_folder
from smdist.launch.rank_ends import RankEnds
from smdist.launch.readiness import require_framework, require_port
from smdist.launch.redact import shown_command
from smdist.launch.supervise import Order
from smdist.launch.take_secret import hand_over, hand_over_attempt, take_secret
from smdist.launch.tf_tasks import SERVERS, tasks_of
from smdist.launch.user_code import fetch, install_requirements
from smdist.restart_environment import replaces_hosts

PrintLine = Callable[[str], None]

_PRINT_SECONDS: Final = 1.0
_LAST_PORT: Final = 65_535


class Stopped(BaseException):
    """Exception at a stop signal that arrives before any rank was started.

    `number` is the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlace:
    """Place of this host in the job, and its hardware.

    Attributes:
        config: Configuration of this host's launcher.
        machine: Numbers of CPUs and GPUs of this host.
        world: The hosts that train together, and the number of ranks on each.
    """

    config: RuntimeConfig
    machine: HostResources
    world: World

    @property
    def label(self) -> str:
        """Return the name of this host in messages."""
        return self.world.label(self.config.resources.current_host)


def main() -> int:
    """Run this host's part of the job and return the exit status of `train`."""
    _read_arguments()
    print_line = line_printer("train")
    try:
        with _stoppable():
            place = _place()
            print_line = line_printer(place.label)
            outcome = _run(place, print_line)
    except Stopped as stopped:
        return 128 + stopped.number
    except DistError as error:
        print_line(str(error))
        outcome = Outcome(status=1, failure=str(error), fields=error.as_dict())
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(status=1, failure=f"the launcher failed: {error!r}")
    if outcome.failure:
        write_failure(read_base(), outcome.failure, outcome.fields)
    return outcome.status


def _read_arguments() -> None:
    """Exit with an error if there is any argument but "train".

    No other argument is needed, because SageMaker's files describe the job.
    """
    parser = argparse.ArgumentParser(
        prog="train",
        description="Run this host's part of a SageMaker training job, as the files in"
        " /opt/ml/input/config describe it (or below SAGEMAKER_BASE_DIR).",
    )
    parser.add_argument(
        "train", nargs="?", choices=["train"], help="the word train, which SageMaker passes"
    )
    parser.parse_args()


@contextmanager
def _stoppable() -> Iterator[None]:
    """Install handlers that raise `Stopped` at SIGTERM and SIGINT; for a `with` statement.

    Without handlers the kernel would ignore these signals, if this is process 1. The handlers are
    not removed at the end of the `with` block.
    """

    def stop(number: int, _: FrameType | None) -> None:
        raise Stopped(number)

    stops = (signal.SIGTERM, signal.SIGINT)
    for number in stops:
        signal.signal(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)  # smdist-init blocked them until here
    yield


def _run(place: HostPlace, print_line: PrintLine) -> Outcome:
    config = place.config
    _make_folders(config.base)
    script = fetch(config.source, config.code)
    with private_folder() as folder:
        place = _with_account(_with_secret(place, folder, print_line), folder)
        install_requirements(config.source, config.code, place.config.inherited)
        timeout = (config.options or DataParallel()).start_timeout_seconds
        addresses = wait_for_hosts(place.world, timeout, print_line)
        place = _ready(place, addresses)
        watch = _watch_place(place, addresses, folder)
        if watch and watch.can_lose_network:
            place = _with_variable(place, "SMDIST_ENDED_HOSTS_FILE", str(watch.file))
        order = plan(place, addresses, script, folder)
        for warning in config.warnings:
            print_line(warning)
        print_line(_start_line(place))
        if verbose := verbose_line(config, order.command):
            print_line(verbose)
        start = time.monotonic()
        with watch_hosts(watch, print_line) if watch else nullcontext() as ends:
            outcome = _run_ranks(place, addresses, script, order, print_line, ends=ends)
        print_line(f"{_result_line(outcome, place.label)} after {time.monotonic() - start:.0f} s")
    return outcome


def _make_folders(base: Path) -> None:
    for folder in (base / "code", base / "model", base / "output/data"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LaunchError(
                f"the directory {folder} cannot be created",
                error.strerror or str(error),
                f"Allow the container's user to write to {base}, or run the container as root",
            ) from error


def _with_secret(place: HostPlace, directory: Path, print_line: PrintLine) -> HostPlace:
    """Write the job's secret to a private file for the ranks, and return `place` with its path.

    If the job has ranks, and no secret or not its own, the first host logs why.
    """
    config, world = place.config, place.world
    secret = take_secret(config)
    is_first = config.resources.current_host == world.hosts[0]
    if secret.warning and config.options is not None and is_first and world.size > 1:
        print_line(secret.warning)
    return replace(place, config=hand_over(config, secret, directory))


def _with_account(place: HostPlace, directory: Path) -> HostPlace:
    inherited = place.config.inherited
    environ = {**inherited, **account_environment(inherited, directory)}
    return replace(place, config=replace(place.config, inherited=environ))


def _with_variable(place: HostPlace, name: str, value: str) -> HostPlace:
    environ = {**place.config.inherited, name: value}
    return replace(place, config=replace(place.config, inherited=environ))


def _watch_place(place: HostPlace, addresses: dict[str, str], folder: Path) -> WatchPlace | None:
    """Return what the watch over the launchers needs; None if there is none in this job."""
    config, world = place.config, place.world
    if not config.options or len(world.hosts) < 2:
        return None
    path = Path(config.secret_file) if config.secret_file else None
    found = WatchPlace(
        host=config.resources.current_host,
        hosts=world.hosts,
        addresses=addresses,
        port=launcher_port(config.port, len(world.hosts), 2),
        listening_address=listening_address(world, addresses),
        folder=folder,
        secret=read_secret(path) or b"",
    )
    return found if found.is_useful else None


def _ready(place: HostPlace, addresses: dict[str, str]) -> HostPlace:
    """Check that the ranks' framework is installed and that the ports are free.

    The rendezvous port is checked only on the first host, which listens at it. In an elastic job
    every launcher also listens at a port of its own. Return `place` with the framework that the
    ranks use. A host that starts no ranks needs no check. `addresses` has each host's IP address by
    name.

    Raises:
        LaunchError: The framework is not installed, or a port is in use.
    """
    config = place.config
    if not config.options:
        return place
    framework = require_framework(config.framework, config.inherited)
    host = config.resources.current_host
    if host == place.world.hosts[0]:
        require_port(config.port, place.label, listening_address(place.world, addresses))
    if config.options.elastic_min is not None:
        port = launcher_port(config.port, len(place.world.hosts), 3)
        require_port(port, place.label, addresses[host])
    return replace(place, config=replace(config, framework=framework))


def _place() -> HostPlace:
    config = resolve_request(read_runtime_config())
    machine = inspect_machine(config.inherited)
    processes = 1
    if config.options:
        raise_all(host_faults(config.options, len(config.resources.hosts)))
        processes = config.options.processes_per_host or machine.num_gpus or 1
    world = World(hosts=config.resources.hosts, processes_per_host=processes)
    if config.model:
        raise_all(split_faults(config.model, world_size=world.size, num_hosts=len(world.hosts)))
    return HostPlace(config=config, machine=machine, world=world)


def _run_ranks(
    place: HostPlace,
    addresses: dict[str, str],
    script: Path,
    order: Order,
    print_line: PrintLine,
    *,
    ends: RankEnds | None,
) -> Outcome:
    """Run this host's ranks as the job's options say: until they end, elastic, or with restarts.

    `ends` are exit statuses of ranks, which the launchers tell each other.
    """
    options = place.config.options
    if options and options.elastic_min is not None:
        elastic = _elastic_place(place, options.elastic_min, addresses, order.directory)
        return run_elastic(order, elastic, place.config.base, print_line)
    if options and options.max_restarts:
        return run_attempts(_attempts(place, addresses, script, order), print_line)
    return run_once(order, print_line, ends)


def _elastic_place(
    place: HostPlace, least: int, addresses: dict[str, str], directory: Path
) -> ElasticPlace:
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


def _attempts(
    place: HostPlace, addresses: dict[str, str], script: Path, first: Order
) -> AttemptPlan:
    """Return all that this host needs to start its ranks again after a failure.

    `first` is the command of the first attempt.
    """
    config, world = place.config, place.world
    assert config.options

    def order(attempt: int, directory: Path) -> Order:
        return plan(place, addresses, script, directory, attempt) if attempt else first

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


def launcher_port(port: int, num_hosts: int, number: int) -> int:
    """Return a port at which launchers listen for other launchers.

    These ports follow those of TensorFlow's servers, which use up to three for each host after the
    rendezvous port. If there are not as many ports, the result is before the rendezvous port, and
    before the port beside it, at which ranks meet under torchrun.

    Args:
        port: The rendezvous port.
        num_hosts: Number of hosts of the job.
        number: 1 for the coordinator of restarts and 2 for the watch over launchers, both on the
            first host; 3 for the agents of an elastic job, on every host.
    """
    after = port + 3 * num_hosts + number
    return after if after <= _LAST_PORT else port - 1 - number


def plan(
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


def line_printer(label: str) -> PrintLine:
    """Return a function that prints a line on stderr with `[label]` before it.

    If the reader of stderr does not read, the function drops the line after one second.
    """

    def print_line(text: str) -> None:
        line = f"[{label}] {text}\n".encode("utf-8", "backslashreplace")
        write_whole(sys.stderr.fileno(), line, None, _PRINT_SECONDS)

    return print_line


def _start_line(place: HostPlace) -> str:
    config, world = place.config, place.world
    command = _shown(config)
    if config.options is None:
        groups = ", ".join(config.distribution_groups)
        where = f" as a plain process; ranks start only in the groups {groups}" if groups else ""
        return f"starts {command}{where}"
    if config.strategy == SERVERS:
        hosts = ", ".join(map(world.label, world.hosts))
        where = world.label(world.hosts[0])
        return f"starts TensorFlow's servers on {hosts}, and on {where} the script {command}"
    first = world.rank(config.resources.current_host, 0)
    last = first + world.processes_per_host - 1
    hosts = ", ".join(map(world.label, world.hosts))
    ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
    return f"starts {ranks} of {world.size} on {hosts}: {command}"


def _shown(config: RuntimeConfig) -> str:
    program = config.source.program
    if config.texts is None:
        return shown_command(program, config.hyperparameters)
    return shown_command(program, config.texts, trainer_arguments)


def _result_line(outcome: Outcome, label: str) -> str:
    if outcome.failure:
        reason = outcome.failure.removeprefix(f"{label} ")
        return f"{reason}; failed with status {outcome.status}"
    return "succeeded" if outcome.status == 0 else f"stopped with status {outcome.status}"


if __name__ == "__main__":
    sys.exit(main())
