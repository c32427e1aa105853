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
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType

from sagemaker_dist.contract import DataParallel
from sagemaker_dist.errors import DistError, LaunchError
from smdist.config import read_base
from smdist.dataparallel.rendezvous.secret import read_secret
from smdist.launch.attempt_loop import run_attempts, run_once
from smdist.launch.container_user import account_environment
from smdist.launch.elastic_policy import run_elastic
from smdist.launch.failure_file import write_failure
from smdist.launch.host_place import HostPlace, launcher_port, read_place
from smdist.launch.host_resolution import listening_address, wait_for_hosts
from smdist.launch.host_watch import WatchPlace, watch_hosts
from smdist.launch.mpi_request import verbose_line
from smdist.launch.outcome import Outcome
from smdist.launch.private_folder import private_folder
from smdist.launch.rank_ends import RankEnds
from smdist.launch.rank_order import attempt_plan, elastic_place, rank_order
from smdist.launch.readiness import require_framework, require_port
from smdist.launch.start_line import PrintLine, line_printer, result_line, start_line
from smdist.launch.supervise import Order
from smdist.launch.take_secret import hand_over, take_secret
from smdist.launch.user_code import fetch, install_requirements


class Stopped(BaseException):
    """Exception at a stop signal that arrives before any rank was started.

    `number` is the number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main() -> int:
    """Run this host's part of the job and return the exit status of `train`."""
    _read_arguments()
    print_line = line_printer("train")
    try:
        with _stoppable():
            place = read_place()
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
        order = rank_order(place, addresses, script, folder)
        for warning in config.warnings:
            print_line(warning)
        print_line(start_line(place))
        if verbose := verbose_line(config, order.command):
            print_line(verbose)
        start = time.monotonic()
        with watch_hosts(watch, print_line) if watch else nullcontext() as ends:
            outcome = _run_ranks(place, addresses, script, order, print_line, ends=ends)
        print_line(f"{result_line(outcome, place.label)} after {time.monotonic() - start:.0f} s")
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
        elastic = elastic_place(place, options.elastic_min, addresses, order.directory)
        return run_elastic(order, elastic, place.config.base, print_line)
    if options and options.max_restarts:
        return run_attempts(attempt_plan(place, addresses, script, order), print_line)
    return run_once(order, print_line, ends)


if __name__ == "__main__":
    sys.exit(main())
