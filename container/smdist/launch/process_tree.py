# SPDX-License-Identifier: Apache-2.0
"""Descendants of this process, from /proc, and those that must receive a signal.

This module imports little, because process 1 of a container imports it before it starts the
command.
"""

from __future__ import annotations

import os
import stat

_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"})


def below(ancestor: int) -> dict[int, list[int]]:
    """Return the living descendants of process `ancestor`, each with the numbers of its children.

    The keys are the descendants' process numbers, parents before their children. `ancestor` itself
    is not among them.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  # pathlib takes longer than all of this
        if name.isdecimal() and (parent := _living_parent(name)):
            children.setdefault(parent, []).append(int(name))
    found: dict[int, list[int]] = {}
    waiting = [*children.get(ancestor, [])]
    while waiting:
        process = waiting.pop(0)
        found[process] = children.get(process, [])
        waiting += found[process]
    return found


def signal_targets(ancestor: int, number: int) -> list[int]:
    """Return the numbers of the descendants of `ancestor` that must receive a signal now.

    Parents come before their children: a shell must have the signal before its command ends.
    Call the function again when some of them have ended. The rule depends on the process:

    a shell                 it receives the signal, and so do its children: a shell acts on a
                            signal only after its command has ended
    handles the signal      it receives the signal, its children do not: a rank that saves a
                            checkpoint needs its data loaders, and torchrun signals its ranks
    reads a child's output  it receives the signal only after that child has ended, since the
                            child's writes would fail without a reader
    any other               it receives the signal, and so do its children

    Args:
        ancestor: Process number; this process itself is never in the result.
        number: Number of the signal.
    """
    targets: list[int] = []
    spared: set[int] = set()
    for process, children in below(ancestor).items():
        is_shell, handles = _facts(process, number)
        if process in spared:
            spared.update(children)
        elif handles and not is_shell:
            targets.append(process)
            spared.update(children)
        elif is_shell or not any(_reads_from(process, child) for child in children):
            targets.append(process)
    return targets


def _facts(process: int, number: int) -> tuple[bool, bool]:
    """Return (process is a shell, process has a handler for signal `number`)."""
    lines = _read(f"/proc/{process}/status").splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    caught = int(facts.get("SigCgt", "0"), 16)
    return facts.get("Name") in _SHELLS, bool(caught >> (number - 1) & 1)


def _reads_from(process: int, child: int) -> bool:
    """Return True if the process reads a pipe or socket that the child's output goes to."""
    outputs = {_target(f"/proc/{child}/fd/{number}") for number in (1, 2)} - {None}
    folder = f"/proc/{process}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208  # as above
    except OSError:
        return False
    pipes = (f"{folder}/{number}" for number in numbers)
    return any(_target(path) in outputs and _is_readable(path) for path in pipes)


def _target(path: str) -> str | None:
    try:
        target = os.readlink(path)  # noqa: PTH115  # as above
    except OSError:
        return None
    return target if target.startswith(("pipe:", "socket:")) else None


def _is_readable(path: str) -> bool:
    try:
        # the mode of a link below /proc/N/fd is the mode in which the file was opened
        return bool(os.lstat(path).st_mode & stat.S_IRUSR)
    except OSError:
        return False


def _living_parent(name: str) -> int:
    """Return the number of a process's parent; 0 if the process has ended.

    `name` is the process's own number as text.
    """
    fields = _read(f"/proc/{name}/stat").rpartition(")")[2].split()
    return 0 if not fields or fields[0] in "ZX" else int(fields[1])


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  # as above
            return file.read()
    except OSError:  # the process ended meanwhile
        return ""
