# SPDX-License-Identifier: Apache-2.0
"""Recorder of the times of actions and messages in pipeline steps, collected from all ranks.

    recorder = Recorder(rank=dist.get_rank(), pipeline_rank=groups.pp_rank)
    executor.on_event = recorder
    ...                                                      steps
    run = gather(recorder, group, schedule=schedule, edges=placement.edges)
    run.save("trace.json"), run.plot("trace.png"), print(run.replay())

Clocks of hosts differ, so all times are converted to the clock of the group's rank 0. For this, a
rank of another host sends messages to rank 0, which answers with its time. The fastest round trip
is used, and the error is at most half of its duration. Ranks on one host share a clock.
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
from smdist.modelparallel.torch.accelerator import current_device, is_accelerator

_MOST_EVENTS: Final = 1 << 20
_ROUND_TRIPS: Final = 16
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_Row = tuple[Any, ...]  # step, then the arguments of on_event


class Recorder:
    """Recorder of the events of one rank's executor; assign it to `Executor.on_event`.

    A step has each action once, so a new step begins when an action occurs again.

    Args:
        rank: World rank of this process.
        pipeline_rank: Number of this rank in its pipeline.
        replica: Number of this rank's pipeline among the replicas.
        most_events: Largest number of events to keep; older events are dropped.
        clock: Function that returns the present time in seconds. The executor must use the same
            clock for its events.
        clock_name: Name of the clock; ranks with equal names share a clock. None stands for the
            clock of this host, which all its processes share.
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
        """Record an event that has just ended.

        Args:
            kind: Kind of the event. An action is "F" (forward), "B" (backward), "I" (backward for
                inputs) or "W" (backward for parameters). The wait for the inputs of an action is
                "recv", the sending of its results "send".
            stage: Number of the stage.
            microbatch: Number of the microbatch.
            times: Start and end in seconds, and optionally a detail as text.
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
        """Remove all recorded events, and number the next step 0."""
        self._rows.clear()
        self._seen.clear()
        self._step = self._count = 0

    def track(self, *, offset_seconds: float = 0.0, error_seconds: float = 0.0) -> Track:
        """Return the recorded events of this rank, with times on the clock of rank 0.

        Args:
            offset_seconds: Number to add to all times: rank 0's clock minus this rank's clock.
            error_seconds: Largest error of this offset, to be stored with the events.
        """
        device = current_device() or torch.device("cpu")
        return Track(
            rank=self.rank,
            pipeline_rank=self.pipeline_rank,
            replica=self.replica,
            host=socket.gethostname(),
            events=tuple(_event(row, offset_seconds) for row in _with_actions(self._rows)),
            clock_error_seconds=error_seconds,
            num_lost=self._count - len(self._rows),
            device=device.type,
            peak_bytes=(
                torch.accelerator.max_memory_allocated(device) if is_accelerator(device) else None
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Recorded steps of all ranks.

    Attributes:
        tracks: Events of each rank, ordered by world rank.
        schedule: Actions that the ranks of every pipeline run in a step.
        edges: Values that the stages of a pipeline send to each other.
    """

    tracks: tuple[Track, ...]
    schedule: Schedule
    edges: tuple[Edge, ...]

    def document(self) -> dict[str, Any]:
        """Return a trace for Perfetto (ui.perfetto.dev) or chrome://tracing, as a dict for JSON."""
        has_stages = self.schedule.num_stages > self.schedule.num_ranks
        return chrome_trace(self.tracks, self.edges, has_stages=has_stages)

    def save(self, path: str | Path) -> None:
        """Write the trace to a JSON file for Perfetto (ui.perfetto.dev) or chrome://tracing.

        Raises:
            OptionError: The file cannot be written.
        """
        try:
            Path(path).write_text(json.dumps(self.document()))
        except OSError as error:
            raise OptionError(
                f"{str(path)!r} cannot be written",
                str(error),
                "Pass a path in a folder that exists and is writable",
                about="path",
            ) from error

    def plot(
        self, path: str | Path | None = None, *, replica: int = 0, step: int | None = None
    ) -> Picture:
        """Draw one step of one pipeline as a timeline, beside the step that the simulator predicts.

        Args:
            path: File to write, with the suffix .png, .svg or .pdf; None writes no file.
            replica: Number of the pipeline to draw.
            step: Number of the step, where 0 is the first recorded one; None for the last complete
                step.

        Returns:
            The picture, also if a file is written.

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
        """Simulate a step with the measured times of actions, and compare it with recorded steps.

        `print(run.replay())` shows the simulated and the measured time of a step.

        Args:
            skip: Number of recorded steps at the beginning to leave out. None leaves out the first
                step, unless it is the only step.

        Raises:
            OptionError: No step was recorded completely, or none remains after `skip`.
        """
        return replay(self.schedule, self.edges, self.tracks, skip=skip)


def gather(
    recorder: Recorder,
    group: dist.ProcessGroup | None = None,
    *,
    schedule: Schedule,
    edges: tuple[Edge, ...],
) -> Run:
    """Collect the recorded events of all ranks of a group; all its ranks must call this.

    Args:
        recorder: Recorder of this rank.
        group: Group of the ranks; None for all ranks of torch.distributed.
        schedule: Actions that the ranks of every pipeline run in a step.
        edges: Values that the stages of a pipeline send to each other.

    Returns:
        Steps of all ranks, with times on the clock of rank 0; the same on every rank.
    """
    offset, error = _clock_offset(recorder, group)
    track = recorder.track(offset_seconds=offset, error_seconds=error)
    tracks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(tracks, track, group=group)
    ordered = tuple(sorted(tracks, key=lambda each: each.rank))
    return Run(tracks=ordered, schedule=schedule, edges=tuple(edges))


def _with_actions(rows: Iterable[_Row]) -> list[_Row]:
    """Add the step and the kind of an action to each send or receive of this action.

    A message is recorded before its action. So step and kind are those of the next action in the
    rows.

    Args:
        rows: Recorded events (step, kind, stage, microbatch, start, end, detail), oldest first.
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
    """Convert a recorded row to an `Event`.

    Args:
        row: Tuple (step, kind, stage, microbatch, start, end, detail); the detail may be missing.
        offset: Seconds to add to both times.
    """
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
    """Return a name for the clock of this machine: its boot id, which all its containers share."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()


def _clock_offset(recorder: Recorder, group: dist.ProcessGroup | None) -> tuple[float, float]:
    """Compare this rank's clock with the clock of rank 0; all ranks of the group must call this.

    Args:
        recorder: Recorder of this rank, with its clock.
        group: Group of the ranks; None for all ranks of torch.distributed.

    Returns:
        Rank 0's clock minus this rank's clock, and the largest error of this difference, in
        seconds; (0, 0) if both ranks share a clock.
    """
    names: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(names, recorder.clock_name, group=group)
    rank, found = dist.get_rank(group), (0.0, 0.0)
    for other, name in enumerate(names):
        if name == names[0]:
            continue
        if rank == 0:
            _send_times(recorder.clock, group, other)
        elif rank == other:
            found = _compare(recorder.clock, group)
    return found


def _send_times(clock: Callable[[], float], group: dist.ProcessGroup | None, other: int) -> None:
    """Answer each message of another rank with the present time of this rank, which is rank 0.

    Args:
        clock: Function that returns the present time in seconds.
        group: Group of both ranks; None for all ranks of torch.distributed.
        other: Number of the other rank in the group.
    """
    time = torch.zeros(1, dtype=torch.float64)
    for _ in range(_ROUND_TRIPS):
        dist.recv(time, group=group, group_src=other)
        time[0] = clock()
        dist.send(time, group=group, group_dst=other)


def _compare(clock: Callable[[], float], group: dist.ProcessGroup | None) -> tuple[float, float]:
    """Compare the clock of rank 0 with this rank's clock, by several round trips of messages.

    Args:
        clock: Function that returns the present time of this rank in seconds.
        group: Group of both ranks; None for all ranks of torch.distributed.

    Returns:
        Rank 0's clock minus this rank's clock, and the largest error of this difference, in
        seconds.
    """
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
