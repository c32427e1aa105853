# SPDX-License-Identifier: Apache-2.0
"""Record the events of an executor, and gather the records of all ranks.

    recorder = Recorder(rank=dist.get_rank(), pipeline_rank=groups.pp_rank)
    executor.on_event = recorder
    ...                                                      steps
    run = gather(recorder, group, schedule=schedule, edges=placement.edges)
    run.save("trace.json"), run.plot("trace.png"), print(run.replay())

Clocks of hosts differ. Each rank's clock is compared with that of the first rank by messages there
and back. The fastest round trip counts; the error is at most half of it. Ranks on one host share a
clock.
"""

from __future__ import annotations

import json
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch
import torch.distributed as dist

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.record import ACTIONS, RECEIVE, SEND, Event, Track, chrome_trace
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.core.simulate.replay_run import Replay, replay
from smdist.modelparallel.picture import Picture, check_path
from smdist.modelparallel.picture.run_sheet import sheet_of_run

_MOST_EVENTS: Final = 1 << 20
_ROUND_TRIPS: Final = 16
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_Row = tuple[Any, ...]  # step, then the arguments of on_event


class Recorder:
    """Recorder of an executor's events: pass it as `on_event`.

    An action that occurs a second time begins a new step.

    Args:
        rank: This rank in the world.
        pipeline_rank: This rank in its pipeline.
        replica: Number of its pipeline.
        most_events: Number of events to keep; the earliest are dropped.
        clock: The clock of the executor's times, in seconds.
        clock_name: Ranks with the same name share a clock; by default, ranks on one host.
    """

    def __init__(
        self, *, rank: int = 0, pipeline_rank: int = 0, replica: int = 0,
        most_events: int = _MOST_EVENTS, clock: Callable[[], float] = perf_counter,
        clock_name: str | None = None,
    ) -> None:  # fmt: skip
        self.rank, self.pipeline_rank, self.replica = rank, pipeline_rank, replica
        self.clock = clock
        self.clock_name = _clock_name() if clock_name is None else clock_name
        self._rows: deque[_Row] = deque(maxlen=most_events)
        self._seen: set[tuple[str, int, int]] = set()
        self._step, self._count = 0, 0

    def __call__(self, kind: str, stage: int, microbatch: int, *times: Any) -> None:
        """Record an event that has ended.

        Args:
            kind: Kind of the event, such as "F" or "recv".
            stage: Number of the stage.
            microbatch: Number of the microbatch.
            times: Start and end in seconds of the clock, and a detail if there is one.
        """
        if kind in ACTIONS:
            action = (kind, stage, microbatch)
            if action in self._seen:
                self._step += 1
                self._seen.clear()
            self._seen.add(action)
        self._rows.append((self._step, kind, stage, microbatch, *times))
        self._count += 1

    def clear(self) -> None:
        """Remove all events."""
        self._rows.clear()
        self._seen.clear()
        self._step = self._count = 0

    def track(self, *, offset_seconds: float = 0.0, error_seconds: float = 0.0) -> Track:
        """Return the recorded events, with the clock's offset added to their times."""
        return Track(
            rank=self.rank,
            pipeline_rank=self.pipeline_rank,
            replica=self.replica,
            host=socket.gethostname(),
            events=tuple(_event(row, offset_seconds) for row in _with_actions(self._rows)),
            clock_error_seconds=error_seconds,
            num_lost=self._count - len(self._rows),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Recorded steps of all ranks.

    Attributes:
        tracks: Events of each rank.
        schedule: Schedule of each pipeline.
        edges: Edges between its stages.
    """

    tracks: tuple[Track, ...]
    schedule: Schedule
    edges: tuple[Edge, ...]

    def document(self) -> dict[str, Any]:
        """Return a trace for Perfetto (ui.perfetto.dev) or chrome://tracing, as JSON."""
        has_stages = self.schedule.num_stages > self.schedule.num_ranks
        return chrome_trace(self.tracks, self.edges, has_stages=has_stages)

    def save(self, path: str | Path) -> None:
        """Write the trace to a file.

        Raises:
            OptionError: The file cannot be written.
        """
        try:
            Path(path).write_text(json.dumps(self.document()))
        except OSError as error:
            hint = "Pass a path in a folder that is writable"
            raise OptionError(f"{path} cannot be written", str(error), hint) from error

    def plot(
        self, path: str | Path | None = None, *, replica: int = 0, step: int | None = None
    ) -> Picture:
        """Draw one step of one pipeline, beside the simulator's prediction of it.

        Args:
            path: File to write: .png, .svg or .pdf; None writes none.
            replica: Number of the pipeline.
            step: Number of the step, from the first recorded one; by default the last complete
                one.

        Raises:
            OptionError: The step was not recorded completely, or the path has another suffix.
            SetupError: matplotlib is not installed.
        """
        if path is not None:
            check_path(Path(path))
        sheet = sheet_of_run(self.schedule, self.tracks, self.replay(), replica=replica, step=step)
        picture = Picture(sheet)
        if path is not None:
            picture.save(path)
        return picture

    def replay(self, *, skip: int | None = None) -> Replay:
        """Predict steps from the times of their parts; `print` shows prediction and measurement.

        Args:
            skip: Number of steps at the beginning to leave out; by default one, if there are more.

        Raises:
            OptionError: No step was recorded completely, or none remains.
        """
        return replay(self.schedule, self.edges, self.tracks, skip=skip)


def gather(
    recorder: Recorder,
    group: dist.ProcessGroup | None = None,
    *,
    schedule: Schedule,
    edges: tuple[Edge, ...],
) -> Run:
    """Return the records of all ranks of a group; collective."""
    offset, error = _clock_offset(recorder, group)
    track = recorder.track(offset_seconds=offset, error_seconds=error)
    tracks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(tracks, track, group=group)
    ordered = tuple(sorted(tracks, key=lambda each: each.rank))
    return Run(tracks=ordered, schedule=schedule, edges=tuple(edges))


def _with_actions(rows: Iterable[_Row]) -> list[_Row]:
    """Return the rows with step and action added to messages.

    A message is recorded before the action that it belongs to.
    """
    found: list[_Row] = []
    after: _Row | None = None
    for row in reversed(list(rows)):
        if row[1] in ACTIONS:
            after = row
        elif row[1] in (SEND, RECEIVE) and after is not None:
            row = (after[0], *row[1:6], *([each for each in row[6:] if each] or [after[1]]))
        found.append(row)
    return found[::-1]


def _event(row: _Row, offset: float) -> Event:
    step, kind, stage, microbatch, start, end, *detail = row
    return Event(
        kind=kind,
        stage=stage,
        microbatch=microbatch,
        step=step,
        start=start + offset,
        end=end + offset,
        detail=detail[0] if detail else "",
    )


def _clock_name() -> str:
    """Return the name of this clock; processes of one kernel share it, in any container."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


def _clock_offset(recorder: Recorder, group: dist.ProcessGroup | None) -> tuple[float, float]:
    """Return the offset of this rank's clock to the first rank's, and its error, in seconds."""
    names: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, recorder.clock_name, group=group)
    rank, found = dist.get_rank(group), (0.0, 0.0)
    for other, name in enumerate(names):
        if name == names[0]:
            continue
        if rank == 0:
            _answer(recorder.clock, group, other)
        elif rank == other:
            found = _compare(recorder.clock, group)
    return found


def _answer(clock: Callable[[], float], group: dist.ProcessGroup | None, other: int) -> None:
    time = torch.zeros(1, dtype=torch.float64)
    for _ in range(_ROUND_TRIPS):
        dist.recv(time, group=group, group_src=other)
        time[0] = clock()
        dist.send(time, group=group, group_dst=other)


def _compare(clock: Callable[[], float], group: dist.ProcessGroup | None) -> tuple[float, float]:
    time, best = torch.zeros(1, dtype=torch.float64), (0.0, float("inf"))
    for _ in range(_ROUND_TRIPS):
        left = clock()
        dist.send(time, group=group, group_dst=0)
        dist.recv(time, group=group, group_src=0)
        back = clock()
        half = (back - left) / 2
        if half < best[1]:
            best = float(time) - (left + half), half
    return best
