# SPDX-License-Identifier: Apache-2.0
"""Messages of a recorded run: each send is matched with its receive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.record.events import ACTIONS, RECEIVE, SEND, Event, Track


class Transfer(NamedTuple):
    """Message from one rank to another, as both ends recorded it.

    Attributes:
        sender: Track of the rank that sent the message.
        sent: Event of the send. If it was not recorded, the action that computed the value.
        receiver: Track of the rank that received the message.
        received: Receive event.
    """

    sender: Track
    sent: Event
    receiver: Track
    received: Event


_Place = tuple[int, int, int, int, bool]  # replica, step, microbatch, stage, is forward


def transfers(tracks: Sequence[Track], edges: Sequence[Edge]) -> Iterator[Transfer]:
    """Yield all messages whose sender and receiver were both recorded.

    Messages come in the order of the receivers' tracks, then of the receives in a track.

    Args:
        tracks: Recorded events of the ranks.
        edges: Values sent between stages.
    """
    sends: dict[_Place, tuple[Track, Event]] = {}
    for track in tracks:
        for event in track.events:
            place = _place(track, event, event.stage)
            if event.kind == SEND:
                sends[place] = track, event
            elif event.kind in ACTIONS:
                sends.setdefault(place, (track, event))
    for track in tracks:
        for event in track.events:
            if event.kind == RECEIVE:
                for stage in _sources(event, edges):
                    sender, sent = sends.get(_place(track, event, stage), (track, None))
                    if sent is not None and sender.rank != track.rank:
                        yield Transfer(sender, sent, track, event)


def carries_something(event: Event, edges: Sequence[Edge]) -> bool:
    """Return True if a send or receive event transfers at least one value.

    The first and the last stage may have nothing to send or receive in one of the passes.

    Args:
        event: Send or receive to check.
        edges: Values sent between stages.
    """
    if event.kind == RECEIVE:
        return bool(_sources(event, edges))
    if event.is_forward:
        return any(edge.source == event.stage for edge in edges)
    return any(edge.target == event.stage and edge.has_gradient for edge in edges)


def _place(track: Track, event: Event, stage: int) -> _Place:
    """Return a key that is equal for the send and the receive of the same value.

    Args:
        track: Events of the rank that sends or receives the value.
        event: Event of the send or receive.
        stage: Stage that computed the value.
    """
    return track.replica, event.step, event.microbatch, stage, event.is_forward


def _sources(event: Event, edges: Sequence[Edge]) -> list[int]:
    """Return the stages whose values a receive event waits for, each stage once.

    Args:
        event: Receive event.
        edges: Values sent between stages.
    """
    if event.is_forward:
        found = (edge.source for edge in edges if edge.target == event.stage)
    else:
        found = (e.target for e in edges if e.source == event.stage and e.has_gradient)
    return list(dict.fromkeys(found))
