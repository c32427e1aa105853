# SPDX-License-Identifier: Apache-2.0
"""Who is below this process, as /proc tells, and who of them must hear a signal.

Imports little: process 1 of a container waits for nothing before its command runs.
"""

from __future__ import annotations

import os

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
    """Those below that a signal is for.

    A process that handles the signal passes it on as it sees fit: a rank that
    saves a checkpoint needs its data loaders, torchrun tells its ranks. A shell
    waits for its command first, so what runs below it hears the signal, too.
    """
    family = below(ancestor)
    reached: set[int] = set()
    held: set[int] = set()
    for process, children in family.items():
        if process not in held:
            reached.add(process)
        if process in held or _decides_for_children(process, number):
            held.update(children)
    return reached


def _living_parent(name: str) -> int:
    """The parent's number; 0 of a process that is gone or only waits to be reaped."""
    fields = _read(f"/proc/{name}/stat").rpartition(")")[2].split()
    return 0 if not fields or fields[0] in "ZX" else int(fields[1])


def _decides_for_children(process: int, number: int) -> bool:
    lines = _read(f"/proc/{process}/status").splitlines()
    facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    caught = int(facts.get("SigCgt", "0"), 16)
    return bool(caught >> (number - 1) & 1) and facts.get("Name") not in _SHELLS


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  # as above
            return file.read()
    except OSError:  # it ended meanwhile
        return ""
