# SPDX-License-Identifier: Apache-2.0
"""Descendants of this process as /proc lists them, and those that must receive a signal.

Imports little, because process 1 of a container runs this before its command starts.
"""

from __future__ import annotations

import os
import stat

_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"})


def below(ancestor: int) -> dict[int, list[int]]:
    """Map every living descendant to its own children, parents before children."""
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


def hearers(ancestor: int, number: int) -> set[int]:
    """Return the descendants that must receive a signal now; call again when some have ended.

    shell           receives it, and so do its children: a shell waits for its command first
    handles it      receives it, its children do not: a rank that saves a checkpoint needs its
                    data loaders, and torchrun signals its ranks itself
    reads a child   not yet: the child's output would break the pipe
    any other       receives it, and so do its children
    """
    reached: set[int] = set()
    held: set[int] = set()
    for process, children in below(ancestor).items():
        is_shell, handles = _facts(process, number)
        if process in held:
            held.update(children)
        elif handles and not is_shell:
            reached.add(process)
            held.update(children)
        elif is_shell or not any(_reads_from(process, child) for child in children):
            reached.add(process)
    return reached


def _facts(process: int, number: int) -> tuple[bool, bool]:
    """Tell whether the process is a shell, and whether it handles the signal."""
    lines = _read(f"/proc/{process}/status").splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    caught = int(facts.get("SigCgt", "0"), 16)
    return facts.get("Name") in _SHELLS, bool(caught >> (number - 1) & 1)


def _reads_from(process: int, child: int) -> bool:
    """Tell whether the process reads a pipe that the child writes to."""
    said = {_target(f"/proc/{child}/fd/{number}") for number in (1, 2)} - {None}
    folder = f"/proc/{process}/fd"
    try:
        numbers = os.listdir(folder)  # noqa: PTH208  # as above
    except OSError:
        return False
    pipes = (f"{folder}/{number}" for number in numbers)
    return any(_target(path) in said and _is_readable(path) for path in pipes)


def _target(path: str) -> str | None:
    try:
        target = os.readlink(path)  # noqa: PTH115  # as above
    except OSError:
        return None
    return target if target.startswith(("pipe:", "socket:")) else None


def _is_readable(path: str) -> bool:
    try:
        return bool(
            os.lstat(path).st_mode & stat.S_IRUSR
        )  # /proc shows the mode in which the file was opened
    except OSError:
        return False


def _living_parent(name: str) -> int:
    """Return the parent's process number; 0 for a process that is gone or a zombie."""
    fields = _read(f"/proc/{name}/stat").rpartition(")")[2].split()
    return 0 if not fields or fields[0] in "ZX" else int(fields[1])


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  # as above
            return file.read()
    except OSError:  # the process ended meanwhile
        return ""
