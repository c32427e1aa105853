# SPDX-License-Identifier: Apache-2.0
"""Lines of the launcher in the log: how it starts this host's ranks, and how they have ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from smdist.config import RuntimeConfig
from smdist.launch.environment import trainer_arguments
from smdist.launch.host_place import HostPlace
from smdist.launch.nonblocking_writer import write_whole
from smdist.launch.outcome import Outcome
from smdist.launch.redact import shown_command
from smdist.launch.tf_tasks import SERVERS

PrintLine = Callable[[str], None]

_PRINT_SECONDS: Final = 1.0


def line_printer(label: str) -> PrintLine:
    """Return a function that prints a line on stderr with `[label]` before it.

    If the reader of stderr does not read, the function drops the line after one second.
    """

    def print_line(text: str) -> None:
        line = f"[{label}] {text}\n".encode("utf-8", "backslashreplace")
        write_whole(sys.stderr.fileno(), line, None, _PRINT_SECONDS)

    return print_line


def start_line(place: HostPlace) -> str:
    """Return which ranks this host starts, on which hosts the others are, and the command."""
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


def result_line(outcome: Outcome, label: str) -> str:
    """Return how the ranks of the host `label` have ended."""
    if outcome.failure:
        reason = outcome.failure.removeprefix(f"{label} ")
        return f"{reason}; failed with status {outcome.status}"
    return "succeeded" if outcome.status == 0 else f"stopped with status {outcome.status}"


def _shown(config: RuntimeConfig) -> str:
    program = config.source.program
    if config.texts is None:
        return shown_command(program, config.hyperparameters)
    return shown_command(program, config.texts, trainer_arguments)
