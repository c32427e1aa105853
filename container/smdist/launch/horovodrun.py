# SPDX-License-Identifier: Apache-2.0
"""Program `horovodrun`: starts ranks on this machine with the launcher of smdist, without MPI.

    horovodrun -np 4 -H localhost:4 python train.py --epochs 3

Ranks have the variables of torchrun (RANK, WORLD_SIZE, ...) and those of Horovod (HOROVOD_RANK,
...). If one fails, the others are ended; Ctrl-C and SIGTERM reach all of them. The exit status is
that of the rank that failed first.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import smdist
from sagemaker_dist.contract.job_secret import write_private
from sagemaker_dist.contract.option_variables import misspelt, value_faults
from sagemaker_dist.errors import DistError, LaunchError, raise_all
from smdist.config import read_guard_config
from smdist.launch.attempt_loop import run_once
from smdist.launch.environment import kept_memory
from smdist.launch.horovodrun_options import RunOptions, read_request
from smdist.launch.launch_command import plain_command, starter_command
from smdist.launch.machine import inspect_machine
from smdist.launch.private_folder import private_folder
from smdist.launch.supervise import Order
from smdist.launch.tf_tasks import Task, Tasks

_HELP: Final = """\
usage: horovodrun -np N [-H HOST:SLOTS,...] [options] COMMAND [ARGUMENTS]

Start N ranks of COMMAND on this machine, such as: horovodrun -np 4 python train.py

  -np N, --num-proc N       number of ranks
  -H, --hosts HOST:SLOTS    names of this machine, such as localhost:4
  --hostfile FILE           the same, one host a line: localhost slots=4
  --start-timeout SECONDS   longest wait of ranks for each other
  --fusion-threshold-mb N   size of the fusion buffer, in MiB
  --timeline-filename FILE  file of rank 0's operations, for chrome://tracing
  --verbose                 print the command of the ranks
  --gloo                    no effect: ranks start without MPI
  -cb, --check-build        print what is built in
  -v, --version             print the version
  -h, --help                print this help

Options of Horovod's speed and log, such as --cycle-time-ms, are accepted without effect, with a
line that says why. All others are refused with the reason.
"""
_ADDRESS: Final = "127.0.0.1"
_RUN_PROGRAM: Final = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def main() -> int:
    """Run the command line of this process, and return the exit status."""
    try:
        request = read_request(sys.argv[1:], lambda name: Path(name).read_text(encoding="utf-8"))
        if request.only_shows:
            sys.stdout.write(_shown(request))
            return 0
        return run(request)
    except DistError as error:
        _print_line(str(error))
        return 1


def run(request: RunOptions) -> int:
    """Run the ranks of a request, and return the exit status.

    Raises:
        OptionError: A variable SMDIST_* of this environment is wrong.
        LaunchError: The program of the ranks does not exist.
    """
    for line in request.notes:
        _print_line(line)
    config = read_guard_config()
    environ = config.inherited
    raise_all([*misspelt(environ), *value_faults(environ)])
    with private_folder() as folder:
        tasks = Tasks(each=_tasks(request, environ))
        secret = folder / "secret"
        write_private(secret, secrets.token_hex(32).encode())
        order = Order(
            command=tuple(starter_command(tasks.write(folder))),
            environ={**environ, **_environment(request, environ, secret)},
            directory=folder,
            label=socket.gethostname(),
            stop_seconds=config.stop_seconds,
            starter="the starter",
        )
        if request.is_verbose:
            _print_line(f"the command of each rank is {shlex.join(tasks.each[0].command)}")
        outcome = run_once(order, _print_line)
    if outcome.failure:
        _print_line(outcome.failure)
    return outcome.status


def _tasks(request: RunOptions, environ: Mapping[str, str]) -> tuple[Task, ...]:
    command, size = _rank_command(request.command, environ), request.num_ranks or 1
    shared = {"MASTER_ADDR": _ADDRESS, "MASTER_PORT": str(_free_port())}
    tasks = []
    for rank in map(str, range(size)):
        place = {"RANK": rank, "LOCAL_RANK": rank}
        place |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(size))
        place |= {"HOROVOD_RANK": rank, "HOROVOD_LOCAL_RANK": rank, "HOROVOD_CROSS_RANK": "0"}
        place |= dict.fromkeys(("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"), str(size))
        place |= {"HOROVOD_CROSS_SIZE": "1", "HOROVOD_HOSTNAME": _ADDRESS}
        tasks.append(Task(command=command, environ={**place, **shared}))
    return tuple(tasks)


def _rank_command(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command of a rank's guard, which runs its arguments with this Python."""
    program = shutil.which(words[0], path=environ.get("PATH"))
    if program is None:
        raise LaunchError(
            f"the command is {shlex.join(words)}",
            f"there is no program {words[0]!r}",
            "Name a program, such as python train.py",
            about="command",
            kind="missing",
        )
    own = Path(sys.executable)
    if Path(program).parent == own.parent and Path(program).resolve() == own.resolve():
        return tuple(plain_command(words[1:]))
    return tuple(plain_command(["-c", _RUN_PROGRAM, program, *words[1:]]))


def _environment(request: RunOptions, environ: Mapping[str, str], secret: Path) -> dict[str, str]:
    share = max(1, inspect_machine(environ).num_cpus // (request.num_ranks or 1))
    threads = environ.get("OMP_NUM_THREADS") or str(share)
    for_tensorflow = environ.get("TF_NUM_INTRAOP_THREADS") or threads.partition(",")[0]
    found = {
        "SMDIST_ADDRESS": _ADDRESS,
        "SMDIST_HOST_LABEL": socket.gethostname(),
        "SMDIST_SECRET_FILE": str(secret),
        "SMDIST_GUARD_DIRECTORY": str(Path.cwd()),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": for_tensorflow,
        **kept_memory(environ),
    }
    if request.start_timeout_seconds is not None:
        found["SMDIST_START_TIMEOUT_SECONDS"] = str(request.start_timeout_seconds)
    if request.timeline_file is not None:
        found["HOROVOD_TIMELINE"] = request.timeline_file
    if request.fusion_mib is not None:
        found["SMDIST_FUSION_BYTES"] = str(request.fusion_mib << 20)
    return found


def _free_port() -> int:
    with socket.create_server((_ADDRESS, 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _shown(request: RunOptions) -> str:
    if request.shows_help:
        return _HELP
    if request.shows_version:
        return f"{smdist.__version__} (sagemaker-dist, with the interface of Horovod 0.28.1)\n"
    frameworks = {"TensorFlow": "tensorflow", "PyTorch": "torch", "MXNet": ""}
    found = {name: bool(module and find_spec(module)) for name, module in frameworks.items()}
    parts: dict[str, dict[str, bool]] = {
        "Available Frameworks": found,
        "Available Controllers": {"MPI": False, "Gloo": False, "smdist": True},
        "Available Tensor Operations": {"NCCL": False, "MPI": False, "Gloo": False, "smdist": True},
    }
    lines = [f"sagemaker-dist {smdist.__version__}:"]
    for title, each in parts.items():
        lines += ["", f"{title}:"]
        lines += [f"    [{'X' if on else ' '}] {name}" for name, on in each.items()]
    return "\n".join(lines) + "\n"


def _print_line(text: str) -> None:
    sys.stderr.write(f"[horovodrun] {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
