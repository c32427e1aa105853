# SPDX-License-Identifier: Apache-2.0
"""Who is below this process, as /proc tells, and who of them must hear a signal.

Imports little: process 1 of a container waits for nothing before its command runs.
"""

from __future__ import annotations

import os
import stat

_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"})


def below(ancestor: int) -> dict[int, list[int]]:
    """Every living process below one, parents before children, each with its own children."""
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
    """Those below that a signal is for, now; ask again when some of them have ended.

    shell           told, and those below it: it waits for its command first
    handles it      told, and nobody below: a rank that saves a checkpoint needs
                    its data loaders, torchrun tells its ranks
    reads a child   not yet: what the child has to say would break its pipe
    anybody else    told, and those below it
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
    """Whether it is a shell, and whether it handles the signal."""
    lines = _read(f"/proc/{process}/status").splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    caught = int(facts.get("SigCgt", "0"), 16)
    return facts.get("Name") in _SHELLS, bool(caught >> (number - 1) & 1)


def _reads_from(process: int, child: int) -> bool:
    """Whether the child's output is a pipe that the process holds the other end of."""
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
        return bool(os.lstat(path).st_mode & stat.S_IRUSR)  # /proc shows how it was opened
    except OSError:
        return False


def _living_parent(name: str) -> int:
    """The parent's number; 0 of a process that is gone or only waits to be reaped."""
    fields = _read(f"/proc/{name}/stat").rpartition(")")[2].split()
    return 0 if not fields or fields[0] in "ZX" else int(fields[1])


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  # as above
            return file.read()
    except OSError:  # it ended meanwhile
        return ""
