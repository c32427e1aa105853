# SPDX-License-Identifier: Apache-2.0
"""Records what an executor does, and brings the records of all ranks together.

    recorder = Recorder(rank=dist.get_rank(), pipeline_rank=groups.pp_rank)
    executor.on_event = recorder
    ...                                                      steps
    run = gather(recorder, group, schedule=schedule, edges=placement.edges)
    run.save("trace.json"), run.plot("trace.png"), print(run.replay())

Clocks of hosts differ. Every rank's is compared with the first one's by messages there and back, of
which the fastest counts: it is off by half its round trip at most. Ranks on one host share a clock.
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
from smdist.modelparallel.core.simulate.replay import Replay, replay
from smdist.modelparallel.picture import Picture, check_path
from smdist.modelparallel.picture.of_run import sheet_of_run

_MOST_EVENTS: Final = 1 << 20
_ROUND_TRIPS: Final = 16
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_Row = tuple[Any, ...]  # step, then what an executor tells


class Recorder:
    """Keeps what an executor tells: pass it as `on_event`.

    An action that comes again begins a new step.

    Args:
        rank: This one's, in the world.
        pipeline_rank: In its pipeline.
        replica: Which pipeline that is.
        most_events: How many are kept; the earliest make room.
        clock: What the executor's times are of.
        clock_name: Ranks with clocks of one name share a clock; by default those of one host.
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
        """Note what has just ended.

        Args:
            times: Start and end in seconds of the clock, and a detail where there is one.
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
        """Forget everything."""
        self._rows.clear()
        self._seen.clear()
        self._step = self._count = 0

    def track(self, *, offset_seconds: float = 0.0, error_seconds: float = 0.0) -> Track:
        """What was kept, its times moved by the offset of the clock."""
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
    """What all ranks did in the recorded steps.

    Attributes:
        tracks: By rank.
        schedule: Of each pipeline.
        edges: Between its stages.
    """

    tracks: tuple[Track, ...]
    schedule: Schedule
    edges: tuple[Edge, ...]

    def document(self) -> dict[str, Any]:
        """A trace for Perfetto (ui.perfetto.dev) or chrome://tracing, as JSON."""
        has_stages = self.schedule.num_stages > self.schedule.num_ranks
        return chrome_trace(self.tracks, self.edges, has_stages=has_stages)

    def save(self, path: str | Path) -> None:
        """Write that trace.

        Raises:
            OptionError: It cannot be written there.
        """
        try:
            Path(path).write_text(json.dumps(self.document()))
        except OSError as error:
            mend = "Pass a path in a folder that is writable"
            raise OptionError(f"{path} cannot be written", str(error), mend) from error

    def plot(
        self, path: str | Path | None = None, *, replica: int = 0, step: int | None = None
    ) -> Picture:
        """Draw one step of one pipeline, and the same step as the simulator predicts it.

        Args:
            path: Where to write it: .png, .svg or .pdf.
            replica: Which pipeline.
            step: Counted from the first recorded one; by default the last whole one.

        Raises:
            OptionError: No such step was recorded whole, or the path is no picture's.
            SetupError: There is no matplotlib.
        """
        if path is not None:
            check_path(Path(path))
        sheet = sheet_of_run(self.schedule, self.tracks, self.replay(), replica=replica, step=step)
        picture = Picture(sheet)
        if path is not None:
            picture.save(path)
        return picture

    def replay(self, *, skip: int | None = None) -> Replay:
        """Predict steps from their parts: predicted beside measured. `print` shows a table.

        Args:
            skip: How many steps at the beginning do not count; by default one, where there are
                more.

        Raises:
            OptionError: No step was recorded whole, or none is left.
        """
        return replay(self.schedule, self.edges, self.tracks, skip=skip)


def gather(
    recorder: Recorder,
    group: dist.ProcessGroup | None = None,
    *,
    schedule: Schedule,
    edges: tuple[Edge, ...],
) -> Run:
    """What all ranks of a group recorded; all of them call it, and all get it."""
    offset, error = _clock_offset(recorder, group)
    track = recorder.track(offset_seconds=offset, error_seconds=error)
    tracks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(tracks, track, group=group)
    ordered = tuple(sorted(tracks, key=lambda each: each.rank))
    return Run(tracks=ordered, schedule=schedule, edges=tuple(edges))


def _with_actions(rows: Iterable[_Row]) -> list[_Row]:
    """Messages are told before the action that they belong to: they get its step and its kind."""
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
    """Processes of one kernel share its clock, in whatever container they are."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


def _clock_offset(recorder: Recorder, group: dist.ProcessGroup | None) -> tuple[float, float]:
    """What to add to this rank's times to have them on the first rank's clock, and the error."""
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
