# SPDX-License-Identifier: Apache-2.0
"""Horovod's timeline: the operations of the engine as a file for chrome://tracing or Perfetto.

The engine stores its last 1,000 operations. A thread reads them while a timeline is recorded, more
often the more operations there are, and appends those that have ended to the file:

    operation    |----- allreduce.noname.1 ------|
                 |- WAIT_FOR_RANKS -|- TRANSFER -|
                 submitted          started      ended

An operation has the name that the script gave it and a number else, as in Horovod.

An operation has started when all ranks on which it depends have called it. Times are microseconds
since the first one. Format: "Trace Event Format", array form, nestable asynchronous events
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, 2016).
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from sagemaker_dist.errors import OptionError, raise_all, require
from smdist.config import read_timeline_variables
from smdist.dataparallel.rendezvous.engine_interface import Engine
from smdist.dataparallel.rendezvous.engine_shutdown import call_before_shutdown

_PAUSE: Final = 0.2  # seconds between two reads of the engine's operations
_MIN_PAUSE: Final = 0.01
_MANY: Final = 200  # operations of one read after which the next one comes sooner
_WAIT: Final = "WAIT_FOR_RANKS"
_TRANSFER: Final = "TRANSFER"
_MAX_NAMES: Final = 4096  # names of operations that may not be read yet
_ARGUMENTS: Final = ("file_path", "mark_cycles")
_VARIABLES: Final = ("HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MARK_CYCLES")


class TimelineFile:
    """File of a timeline, which is complete JSON after close(). Thread safety: none.

    Args:
        file: The open file, which this object closes.
        rank: This rank's number, the process of the events.
    """

    def __init__(self, file: IO[str], rank: int) -> None:
        self._file, self._rank = file, rank
        self._first: float | None = None  # Unix time of the first operation
        self._groups: set[int] = set()
        self._is_empty = True
        file.write("[")
        self._add({"ph": "M", "name": "process_name", "args": {"name": f"rank {rank}"}})

    def add_operation(self, operation: dict[str, Any], name: str) -> None:
        """Append an operation of the engine's history that has ended.

        Args:
            operation: Fields of the operation, as docs/debugging.md describes them.
            name: Name that is shown.
        """
        group = operation["group"]
        if group not in self._groups:
            self._groups.add(group)
            self._add(
                {"ph": "M", "name": "thread_name", "tid": group, "args": {"name": f"group {group}"}}
            )
        submitted, ended = operation["submitted"], operation["ended"]
        started = operation["started"] or ended
        times = ("submitted", "started", "ended")
        args = {key: value for key, value in operation.items() if key not in times}
        self._span(name, operation, submitted, ended, args)
        self._span(_WAIT, operation, submitted, started, {})
        self._span(_TRANSFER, operation, started, ended, {})

    def add_gap(self, count: int, at: float) -> None:
        """Record that `count` operations before the Unix time `at` were not read in time."""
        args = {"operations": count}
        self._add({"ph": "i", "s": "p", "name": "LOST", "ts": self._microseconds(at), "args": args})

    def close(self) -> None:
        """End the JSON, and close the file."""
        self._file.write("\n]\n")
        self._file.close()

    def _span(
        self, name: str, operation: dict[str, Any], begin: float, end: float, args: dict[str, Any]
    ) -> None:
        common = {
            "name": name,
            "cat": "collective",
            "id": operation["number"],
            "tid": operation["group"],
        }
        self._add({**common, "ph": "b", "ts": self._microseconds(begin), "args": args})
        self._add({**common, "ph": "e", "ts": self._microseconds(end)})

    def _microseconds(self, at: float) -> float:
        if self._first is None:
            self._first = at
        return round((at - self._first) * 1e6, 3)

    def _add(self, event: dict[str, Any]) -> None:
        self._file.write("\n" if self._is_empty else ",\n")
        self._is_empty = False
        self._file.write(json.dumps({"pid": self._rank, "tid": 0, **event}))


class TimelineRecorder:
    """Thread that writes the operations which begin after this object is made.

    Args:
        engine: The connected engine.
        file: The file to write.
    """

    def __init__(self, engine: Engine, file: TimelineFile) -> None:
        self._engine, self._file = engine, file
        self._names: dict[tuple[int, int], str] = {}  # by group and sequence
        self._last = max((each["number"] for each in self._operations()), default=0)
        self._waiting: set[int] = set()  # operations that had not ended at the last read
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smdist-timeline", daemon=True)
        self._thread.start()

    def name_operation(self, group: int, sequence: int, name: str) -> None:
        """Show an operation that is about to be submitted under a name."""
        while len(self._names) >= _MAX_NAMES:
            del self._names[next(iter(self._names))]
        self._names[group, sequence] = name

    def stop(self) -> None:
        """Write what has ended until now, and close the file."""
        self._is_ending.set()
        self._thread.join()
        self._read()
        self._file.close()

    def _run(self) -> None:
        pause = _PAUSE
        while not self._is_ending.wait(pause):
            pause = max(pause / 2, _MIN_PAUSE) if self._read() > _MANY else _PAUSE

    def _read(self) -> int:
        """Append the operations that have ended since the last read; return how many were new."""
        operations = self._operations()
        new = [each for each in operations if each["number"] > self._last]
        if new and new[0]["number"] > self._last + 1:
            self._file.add_gap(new[0]["number"] - self._last - 1, new[0]["submitted"])
        due = self._waiting | {each["number"] for each in new}
        for each in operations:
            is_shown = each["number"] in due and each["group"] not in _hidden
            if is_shown and each["ended"] is not None:
                self._file.add_operation(each, self._name_of(each))
        self._waiting = {
            each["number"] for each in operations if each["number"] in due and not each["ended"]
        }
        self._last = max([self._last, *(each["number"] for each in new)])
        return len(new)

    def _name_of(self, operation: dict[str, Any]) -> str:
        given = self._names.get((operation["group"], operation["sequence"]))
        kind = operation["kind"].replace("_", "")
        return given or f"{kind}.noname.{operation['number']}"

    def _operations(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._engine.history("timeline"))["operations"]
        return found


_current: list[TimelineRecorder | None] = []  # at most one; None on ranks that write no file
_hidden: set[int] = set()  # groups of messages that are no operations of the script
_registered: list[bool] = []  # True once the exit of the process closes the file


def start(
    engine: Engine,
    rank: int,
    file_path: str,
    mark_cycles: bool,
    *,
    names: tuple[str, str] = _ARGUMENTS,
) -> None:
    """Begin a timeline: on rank 0 write the file, on other ranks only check the arguments.

    Args:
        engine: The connected engine.
        rank: This rank's number.
        file_path: The file, which is replaced; its folder must exist.
        mark_cycles: Must be False.
        names: Names of the last two arguments in errors.

    Raises:
        OptionError: An argument is wrong, the file cannot be written, or a timeline is recorded
            already.
    """
    faults = []
    if mark_cycles:
        faults.append(
            OptionError(
                f"{names[1]} is {mark_cycles!r}",
                "operations start as soon as they are called, and not in cycles",
                f"Leave {names[1]} out",
                about=names[1],
                kind="unsupported",
            )
        )
    if _current:
        faults.append(
            OptionError(
                f"start_timeline({file_path!r}) was called while a timeline is recorded",
                "a process records one timeline at a time",
                "Call stop_timeline() first",
                about="start_timeline",
                kind="twice",
            )
        )
    raise_all(faults)
    timeline = None
    if rank == 0:
        file = TimelineFile(_opened(file_path, names[0]), rank)
        timeline = TimelineRecorder(engine, file)
    _current.append(timeline)
    if not _registered:
        _registered.append(True)
        call_before_shutdown(stop_if_started)


def start_if_requested(engine: Engine, rank: int) -> None:
    """Begin the timeline that the variable HOROVOD_TIMELINE of the environment requests.

    Args:
        engine: The connected engine.
        rank: This rank's number.

    Raises:
        OptionError: The file cannot be written, or HOROVOD_TIMELINE_MARK_CYCLES is on.
    """
    path, marks_cycles = read_timeline_variables()
    if path is not None and not _current:
        start(engine, rank, path, marks_cycles, names=_VARIABLES)


def stop() -> None:
    """End the timeline and close its file.

    Raises:
        OptionError: No timeline is recorded.
    """
    require(
        bool(_current),
        what="stop_timeline() was called before start_timeline()",
        why="no timeline is recorded",
        hint="Call start_timeline(path) first",
        about="stop_timeline",
        kind="too_early",
    )
    timeline = _current.pop()
    if timeline is not None:
        timeline.stop()


def name_operation(group: int, sequence: int, kind: str, name: str) -> None:
    """Show an operation that is about to be submitted as "KIND.NAME" if a timeline is recorded.

    Args:
        group: Number of the engine's group.
        sequence: Number of the operation in the group.
        kind: Collective, as Horovod calls it, such as "allreduce".
        name: Name of the script, or a generated one.
    """
    timeline = _current[0] if _current else None
    if timeline is not None:
        timeline.name_operation(group, sequence, f"{kind}.{name}")


def hide_group(group: int) -> None:
    """Leave the operations of a group of the engine out of timelines."""
    _hidden.add(group)


def stop_if_started() -> None:
    """End the timeline if one is recorded: at shutdown(), and when the process ends."""
    with suppress(OptionError):
        stop()


def _opened(path: str, name: str) -> IO[str]:
    try:
        return Path(path).open("w", encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise OptionError(
            f"{name} is {path!r}",
            f"the file cannot be written: {error}",
            "Name a file in a folder that exists and is writable on the host of rank 0",
            about=name,
        ) from error
