# SPDX-License-Identifier: Apache-2.0
"""Command line of `horovodrun`: each option is carried out, accepted without effect, or refused.

Source of the options: `horovodrun --help` of Horovod 0.28.1.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.errors import OptionError, closest, raise_all

_THIS_MACHINE: Final = ("localhost", "::1")
_ONE_MACHINE: Final = (
    "it starts ranks on this machine alone",
    "For several hosts use a job with instance_count=N, or torchrun on each host",
)
_NO_EFFECT: Final = (
    "the engine of smdist has no such setting",
    "Leave it out; docs/tuning.md has the engine's own options",
)
_ELASTIC: Final = (
    "ranks are neither added nor lost",
    "Use a job with DataParallel(elastic_min=N) and smdist.elastic",
)
_NO_MPI: Final = ("ranks are started without MPI", "Leave it out")
_LOG: Final = ("all output goes to this terminal", "Redirect it: horovodrun ... > FILE")
_NO_CYCLES: Final = ("operations do not start in cycles", "Leave it out")
_STALLS: Final = (
    "a rank waits for the others as long as SMDIST_TIMEOUT_SECONDS, after a line in the log",
    "Set the environment variable SMDIST_TIMEOUT_SECONDS of horovodrun instead",
)
_IN_ORDER: Final = "operations start as they are called, without cycles, and need no cache"
_ONE_WAY: Final = "the engine chooses how data travel by measuring this machine"
_OWN_LOG: Final = "smdist prints its warnings and errors always, and nothing below them"
_IGNORED: Final[dict[str, tuple[bool, str]]] = {  # takes a value; why it has no effect
    **dict.fromkeys(("--cycle-time-ms", "--cache-capacity"), (True, _IN_ORDER)),
    "--disable-cache": (False, _IN_ORDER),
    "--num-nccl-streams": (True, _ONE_WAY),
    **dict.fromkeys(("--hierarchical-allreduce", "--hierarchical-allgather"), (False, _ONE_WAY)),
    "--log-level": (True, _OWN_LOG),
    **dict.fromkeys(("--log-hide-timestamp", "--log-with-timestamp"), (False, _OWN_LOG)),
}
_LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
_REFUSED: Final[dict[str, tuple[bool, tuple[str, str]]]] = {  # takes a value; why, hint
    **dict.fromkeys(
        (
            "-p", "--ssh-port", "-i", "--ssh-identity-file", "--network-interfaces",
            "--network-interface",
        ),
        (True, _ONE_MACHINE),
    ),
    **dict.fromkeys(
        (
            "--thread-affinity", "--autotune-log-file", "--autotune-warmup-samples",
            "--config-file",
        ),
        (True, _NO_EFFECT),
    ),
    "--autotune": (False, _NO_EFFECT),
    **dict.fromkeys(
        (
            "--stall-check-warning-time-seconds", "--stall-check-shutdown-time-seconds",
            "--gloo-timeout-seconds",
        ),
        (True, _STALLS),
    ),
    "--no-stall-check": (False, _STALLS),
    **dict.fromkeys(
        (
            "--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--slots-per-host",
            "--host-discovery-script", "--reset-limit", "--blacklist-cooldown-range",
            "--elastic-timeout",
        ),
        (True, _ELASTIC),
    ),
    **dict.fromkeys(("--mpi-args", "--binding-args"), (True, _NO_MPI)),
    **dict.fromkeys(("--mpi", "--js", "--tcp", "--mpi-threads-disable"), (False, _NO_MPI)),
    **dict.fromkeys(("--output-filename",), (True, _LOG)),
    **dict.fromkeys(("--prefix-output-with-timestamp",), (False, _LOG)),
    **dict.fromkeys(("--timeline-mark-cycles",), (False, _NO_CYCLES)),
}  # fmt: skip
_VALUES: Final = {  # option with a value -> field of RunOptions
    "-np": "num_ranks",
    "--num-proc": "num_ranks",
    "-n": "num_ranks",
    "-H": "hosts",
    "--hosts": "hosts",
    "-hostfile": "host_file",
    "--hostfile": "host_file",
    "--start-timeout": "start_timeout_seconds",
    "--fusion-threshold-mb": "fusion_mib",
    "--timeline-filename": "timeline_file",
}
_SWITCHES: Final = {
    "--verbose": "is_verbose",
    "-v": "shows_version",
    "--version": "shows_version",
    "-cb": "shows_build",
    "--check-build": "shows_build",
    "-h": "shows_help",
    "--help": "shows_help",
    "--gloo": "uses_gloo",
}
_WITH_VALUE: Final = {
    *_VALUES,
    *(name for name, (takes_value, _) in _REFUSED.items() if takes_value),
    *(name for name, (takes_value, _) in _IGNORED.items() if takes_value),
}
_NUMBERS: Final = ("num_ranks", "start_timeout_seconds", "fusion_mib")
_MOST_RANKS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Parsed command line.

    Attributes:
        num_ranks: Number of ranks, `-np`; None if the command line has none.
        hosts: Hosts and their slots as text, `-H`; None for this machine with enough slots.
        host_file: File with one host a line, `--hostfile`.
        start_timeout_seconds: Longest wait of ranks for each other, `--start-timeout`.
        fusion_mib: Size of the fusion buffer in MiB, `--fusion-threshold-mb`.
        timeline_file: File of rank 0's timeline, `--timeline-filename`.
        is_verbose: Whether the command of the ranks is printed.
        shows_version: Whether only the version is printed.
        shows_build: Whether only what is built in is printed.
        shows_help: Whether only the help is printed.
        uses_gloo: `--gloo`; ranks start without MPI in any case.
        notes: A line for each option without effect.
        command: Program of the ranks, and its arguments.
    """

    num_ranks: int | None = None
    hosts: str | None = None
    host_file: str | None = None
    start_timeout_seconds: int | None = None
    fusion_mib: int | None = None
    timeline_file: str | None = None
    is_verbose: bool = False
    shows_version: bool = False
    shows_build: bool = False
    shows_help: bool = False
    uses_gloo: bool = False
    notes: tuple[str, ...] = ()
    command: tuple[str, ...] = field(default=())

    @property
    def only_shows(self) -> bool:
        """Return whether the command line requests information and starts nothing."""
        return self.shows_version or self.shows_build or self.shows_help


def read_request(arguments: Sequence[str], read_file: Callable[[str], str]) -> RunOptions:
    """Return the parsed command line.

    Args:
        arguments: Words after `horovodrun`. The first that is no option begins the command.
        read_file: Function that returns the text of the host file.

    Raises:
        OptionError: An option is unknown, refused or wrong; all faults are reported.
    """
    values, command, faults = _split(arguments)
    for name in _NUMBERS:
        if name in values:
            values[name] = _number(name, values[name], faults)
    request = RunOptions(**values, command=tuple(command))
    if not request.only_shows:
        faults += _missing(request, {str(about) for each in faults for about in each.about})
        faults += _host_faults(request, read_file)
    raise_all(faults)
    return request


def _split(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str], list[OptionError]]:
    values: dict[str, Any] = {}
    faults: list[OptionError] = []
    words = list(arguments)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, equals, text = word.partition("=")
        if word == "--":
            break
        if name in _WITH_VALUE and not equals:
            if not words:
                faults.append(_fault(f"{name} has no value", "a value follows it", "Add it", name))
                continue
            text = words.pop(0)
        has_value = name in _WITH_VALUE or bool(equals)
        if name in _SWITCHES and not has_value:
            values[_SWITCHES[name]] = True
        elif name in _VALUES:
            values[_VALUES[name]] = text
        elif name in _REFUSED:
            shown = f"{name} is {text!r}" if has_value else f"{name} is set"
            faults.append(_fault(shown, *_REFUSED[name][1], name))
        elif name in _IGNORED and has_value is _IGNORED[name][0]:
            faults += _value_faults(name, text)
            line = f"{name} has no effect: {_IGNORED[name][1]}"
            values["notes"] = (*values.get("notes", ()), line)
        else:
            hint = closest(name, (*_VALUES, *_SWITCHES))
            faults.append(_fault(f"there is {word}", "horovodrun has no such option", hint, name))
    return values, words, faults


def _value_faults(name: str, text: str) -> Iterator[OptionError]:
    """Return the faults of the value of an option without effect, as far as Horovod has them."""
    is_level = name == "--log-level"
    if is_level and text.upper() not in _LEVELS:
        hint = f"Pass one of {', '.join(_LEVELS)}"
        yield _fault(f"{name} is {text!r}", "Horovod has no such level", hint, name)
    elif name in _WITH_VALUE and not is_level and not text.replace(".", "", 1).isdecimal():
        yield _fault(f"{name} is {text!r}", "it is not a number", "Leave it out", name)


def _number(name: str, text: str, faults: list[OptionError]) -> int | None:
    option = next(each for each, target in _VALUES.items() if target == name)
    most = _MOST_RANKS if name == "num_ranks" else 1 << 20
    if text.isdecimal() and 1 <= int(text) <= most:
        return int(text)
    hint = f"Pass an integer from 1 to {most}"
    faults.append(_fault(f"{option} is {text!r}", "it is not a number in range", hint, option))
    return None


def _missing(request: RunOptions, wrong: Container[str]) -> Iterator[OptionError]:
    """Return the faults of what is missing; `wrong` has the options with a fault of their own."""
    is_wrong = any(name in wrong for name, target in _VALUES.items() if target == "num_ranks")
    if request.num_ranks is None and not is_wrong:
        yield _fault("there is no -np", "it is the number of ranks", "Pass -np N", "-np", "missing")
    if not request.command:
        why = "ranks need a program"
        yield _fault("there is no command", why, "Add python train.py", "command", "missing")


def _host_faults(request: RunOptions, read_file: Callable[[str], str]) -> Iterator[OptionError]:
    option, text = "-H", request.hosts
    if request.host_file is not None:
        option = "--hostfile"
        try:
            lines = read_file(request.host_file).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            hint = "Pass the path of a text file"
            yield _fault(f"--hostfile is {request.host_file!r}", str(error), hint, option)
            return
        text = ",".join(line.replace(" slots=", ":").strip() for line in lines if line.strip())
    if text is None:
        return
    slots = 0
    for part in text.split(","):
        name, _, number = part.strip().rpartition(":") if ":" in part else (part, "", "1")
        if not name or not number.isdecimal():
            hint = "Write each host as NAME:SLOTS, such as localhost:4"
            yield _fault(f"{option} has {part!r}", "it is no host with slots", hint, option)
            return
        if not is_this_machine(name):
            yield _fault(f"{option} has the host {name!r}", *_ONE_MACHINE, option, "unsupported")
        slots += int(number)
    if request.num_ranks is not None and slots < request.num_ranks:
        yield _fault(
            f"-np is {request.num_ranks} and {option} has {slots} slots",
            "each rank needs a slot",
            f"Pass -np {slots}, or more slots",
            "-np",
            "difference",
        )


def is_this_machine(name: str) -> bool:
    """Return whether a host's name, as `-H` has it, is one of this machine."""
    own = (*_THIS_MACHINE, socket.gethostname(), socket.getfqdn())
    return name in own or name.startswith("127.")


def _fault(what: str, why: str, hint: str, about: str, kind: str = "option") -> OptionError:
    return OptionError(what, why, hint, about=about, kind=kind)
