# SPDX-License-Identifier: Apache-2.0
"""Starts of many engines in a few processes, each of which runs starts.cc."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build/start/start"
_PROGRAM = str(BUILD / "starts_benchmark")
_PROCESSES = 8
FAULTY_OF_1000 = 100


@dataclass(frozen=True)
class Start:
    """Result of one start.

    Attributes:
        seconds: Time until the sums of all ranks had ended.
        all_lanes_seconds: Time until the engine at the centre of a star had all its lanes.
        failures: Number of sums that failed.
        mebibytes: Peak memory of all processes, or of the process with the centre of a star.
        files: Open files of the process with the most.
        faulty: Number of connections that were refused, reset or delayed.
        reason: Error of the first sum that failed.
    """

    seconds: float
    all_lanes_seconds: float
    failures: int
    mebibytes: float
    files: int
    faulty: int
    reason: str


def mesh(size: int, lanes: int, *, is_crowded: bool, is_faulty: bool) -> Start:
    """Start `size` engines, and add a buffer of 400 KB of all ranks."""
    processes = min(_PROCESSES, size)
    bounds = [size * number // processes for number in range(processes + 1)]
    parts = [
        ["mesh", str(size), str(lanes), str(first), str(last)] for first, last in pairwise(bounds)
    ]
    return _run(parts, is_crowded, is_faulty)


def star(size: int, lanes: int, centre: int, *, is_crowded: bool, is_faulty: bool) -> Start:
    """Start `size` engines, of which one, in a process of its own, connects to all others."""
    others = [number for number in range(size) if number != centre]
    first, last = others[0], others[-1] + 1
    bounds = [first + (last - first) * number // 4 for number in range(5)]
    ranges = sorted([(centre, centre + 1), *pairwise(bounds)])
    parts = [
        ["star", str(size), str(lanes), str(first), str(last), str(centre)]
        for first, last in ranges
    ]
    return _run(parts, is_crowded, is_faulty, alone=ranges.index((centre, centre + 1)))


def alone(size: int, lanes: int) -> tuple[int, int]:
    """Return the KiB of one engine among `size` ranks: after join(), and with all lanes tuned."""
    command = [_PROGRAM, "alone", str(size), str(lanes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    joined, tuned = map(int, done.stdout.split())
    return joined, tuned


def _run(
    parts: list[list[str]], is_crowded: bool, is_faulty: bool, alone: int | None = None
) -> Start:
    faults = {"SMDIST_FAULTY_SOCKETS": str(FAULTY_OF_1000)} if is_faulty else {}
    children = [_start(part, os.environ | faults) for part in parts]
    try:
        ports = [
            _read(child).strip()
            for child, part in zip(children, parts, strict=True)
            for _ in range(int(part[4]) - int(part[3]))
        ]
        _tell(children, " ".join(ports))
        for child in children:
            assert _read(child) == "joined\n"
        with crowd(ports, is_crowded):
            _tell(children, "go")
            rows = [_read(child).split(" ", 7) for child in children]
        _tell(children, "end")
    finally:
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(60)
    memory = [int(row[3]) for row in rows] if alone is None else [int(rows[alone][3])]
    return Start(
        seconds=max(float(row[0]) for row in rows),
        all_lanes_seconds=max(float(row[1]) for row in rows),
        failures=sum(int(row[2]) for row in rows),
        mebibytes=sum(memory) / 1024,
        files=max(int(row[4]) for row in rows),
        faulty=sum(int(row[5]) for row in rows),
        reason=next((row[7].strip() for row in rows if row[7].strip()), ""),
    )


@contextmanager
def crowd(ports: list[str], is_crowded: bool) -> Iterator[None]:
    """Let strangers dial the ports during the `with` block, if `is_crowded`."""
    if not is_crowded or not ports:
        yield
        return
    strangers = _start(["crowd"], dict(os.environ))
    _tell([strangers], " ".join(ports))
    try:
        yield
    finally:
        strangers.kill()
        strangers.wait(60)


def _start(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [_PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )


def _read(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        sys.exit(f"A process of the benchmark ended early: {child.args!r}")
    return line


def _tell(children: list[subprocess.Popen[str]], line: str) -> None:
    for child in children:
        assert child.stdin is not None
        child.stdin.write(line + "\n")
        child.stdin.flush()
