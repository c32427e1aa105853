# SPDX-License-Identifier: Apache-2.0
"""Trace of a recorded run for chrome://tracing and Perfetto (ui.perfetto.dev).

A rank is shown as a "process"; its computation, receives and sends are its "threads". Arrows lead
from the send of a message to its receive. The format is Google's Trace Event Format, as "JSON
Object Format" with complete events ("ph": "X") and flow events ("s", "f").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.record.events import ACTIONS, RECEIVE, SEND, Event, Track
from smdist.modelparallel.core.record.message_pairs import carries_something, transfers

RUN: Final = "smdist"  # key of a trace that viewers ignore
VERSION: Final = 1
_MICROSECONDS: Final = 1e6
_LEAST: Final = 1e-3  # microseconds; an arrow cannot end at a slice of length 0
_COMPUTE: Final = "compute"
_THREADS: Final = {RECEIVE: "receive", SEND: "send"}
_Row = dict[str, Any]


def chrome_trace(
    tracks: Sequence[Track], edges: Sequence[Edge], *, has_stages: bool = False
) -> _Row:
    """Return the trace of a run as a dict of JSON types.

    Args:
        tracks: Recorded events of the ranks to show.
        edges: Values that the stages of these ranks send to each other.
        has_stages: True if ranks have several stages: the forward pass of microbatch 3 on stage 2
            is then shown as `2F3`. False shows it as `F3`.
    """
    begin = min((event.start for track in tracks for event in track.events), default=0.0)
    writer = _Writer(tracks, begin, has_stages)
    names = [row for track in tracks for row in writer.names(track)]
    slices = [
        writer.slice(track, event)
        for track in tracks
        for event in track.events
        if not event.is_message or carries_something(event, edges)
    ]
    arrows = writer.arrows(tracks, edges)
    timed = sorted([*slices, *arrows], key=lambda row: (row["ts"], -row.get("dur", 0.0)))
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *timed], RUN: _run(tracks, edges)}


def _run(tracks: Sequence[Track], edges: Sequence[Edge]) -> _Row:
    """Return what viewers do not show, and readers of the file need: ranks and edges."""
    ranks = [
        {key: getattr(track, key) for key in Track.__dataclass_fields__ if key != "events"}
        for track in tracks
    ]
    return {"version": VERSION, "ranks": ranks, "edges": [asdict(edge) for edge in edges]}


class _Writer:
    """Writer of the events of one trace, each a dict in Google's Trace Event Format."""

    def __init__(self, tracks: Sequence[Track], begin: float, has_stages: bool) -> None:
        self._begin, self._has_stages = begin, has_stages
        self._threads = {track.rank: _threads_of(track) for track in tracks}

    def names(self, track: Track) -> Iterator[_Row]:
        """Yield the metadata events that name and order one rank's process and its threads."""
        process = {"ph": "M", "pid": track.rank}
        name = f"rank {track.rank} on {track.host}"
        yield {**process, "name": "process_name", "args": {"name": name}}
        yield {**process, "name": "process_labels", "args": {"labels": _facts(track)}}
        yield {**process, "name": "process_sort_index", "args": {"sort_index": track.rank}}
        for title, number in self._threads[track.rank].items():
            thread = {**process, "tid": number}
            yield {**thread, "name": "thread_name", "args": {"name": title}}
            yield {**thread, "name": "thread_sort_index", "args": {"sort_index": number}}

    def slice(self, track: Track, event: Event) -> _Row:
        """Return a recorded event of a rank as an event of the trace, with its start and duration.

        Args:
            track: Rank that recorded the event.
            event: Recorded event.
        """
        facts = {"step": event.step, "stage": event.stage, "microbatch": event.microbatch}
        return {
            "ph": "X",
            "name": self._name(event),
            "cat": event.kind,
            **self._at(track, event),
            "ts": self._time(event.start),
            "dur": max(event.seconds * _MICROSECONDS, _LEAST),
            "args": facts | ({"detail": event.detail} if event.detail else {}),
        }

    def arrows(self, tracks: Sequence[Track], edges: Sequence[Edge]) -> Iterator[_Row]:
        """Yield the two flow events of the arrow of each message.

        The arrow leads from the start of the send to the end of the receive.

        Args:
            tracks: Recorded events of the ranks.
            edges: Values sent between stages.
        """
        for number, each in enumerate(transfers(tracks, edges)):
            arrow = {"name": "message", "cat": "message", "id": number}
            at = self._at(each.sender, each.sent)
            yield {"ph": "s", **arrow, **at, "ts": self._time(each.sent.start)}
            at = self._at(each.receiver, each.received)
            yield {"ph": "f", "bp": "e", **arrow, **at, "ts": self._ending(each.received)}

    def _ending(self, event: Event) -> float:
        """Return the time in microseconds at which an arrow ends: just before its receive ends."""
        return self._time(event.start) + max(event.seconds * _MICROSECONDS, _LEAST) - _LEAST / 2

    def _at(self, track: Track, event: Event) -> _Row:
        return {"pid": track.rank, "tid": self._threads[track.rank][_thread(event)]}

    def _time(self, seconds: float) -> float:
        return (seconds - self._begin) * _MICROSECONDS

    def _name(self, event: Event) -> str:
        action = event.kind if event.kind in ACTIONS else event.detail
        if not (event.kind in ACTIONS or event.is_message):
            return event.kind
        stage = event.stage if self._has_stages else ""
        prefix = f"{event.kind} " if event.is_message else ""
        return f"{prefix}{stage}{action}{event.microbatch}"


def _thread(event: Event) -> str:
    return _COMPUTE if event.kind in ACTIONS else _THREADS.get(event.kind, event.kind)


def _threads_of(track: Track) -> dict[str, int]:
    names = dict.fromkeys([_COMPUTE, *_THREADS.values(), *map(_thread, track.events)])
    return {name: number for number, name in enumerate(names)}


def _facts(track: Track) -> str:
    """Return the label of a rank: number of its pipeline, accuracy of its times, lost events."""
    facts = [f"pipeline {track.replica}", f"rank {track.pipeline_rank} of the pipeline"]
    if track.clock_error_seconds:
        facts.append(f"clock within {track.clock_error_seconds * _MICROSECONDS:.0f} us")
    if track.num_lost:
        facts.append(f"{track.num_lost} events lost")
    return ", ".join(facts)
