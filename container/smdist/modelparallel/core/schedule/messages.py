# SPDX-License-Identifier: Apache-2.0
"""The messages that follow from a schedule, and the room they need.

A channel goes from one rank to another and carries either activations (F) or gradients (B). The
two do not share one, even where both go the same way, as they do between ranks with several
stages: such ranks take them in another order than they are sent in. What one channel carries is
taken in the order in which it was sent; transports without tags rely on it.

Two rules for sending are known here.

  * Rendezvous: a message moves when its receiver comes to the action that takes it, and the
    sender goes on meanwhile. A schedule runs under this rule if nothing waits for itself.
  * Bounded buffers: a channel holds so many messages that are sent and not yet taken. A sender
    that finds it full waits, and does nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.schedule.flow import Flow, Waits, run


class Channel(NamedTuple):
    """From one rank to another; F carries activations, B gradients."""

    source: int
    target: int
    carries: Do


Message = tuple[int, int]  # sent, taken: when sender and receiver have done so many actions
Channels = dict[Channel, list[Message]]  # in the order in which messages are taken


def channels_of(flow: Flow) -> Channels:
    """All messages, by channel."""
    channels: defaultdict[Channel, list[Message]] = defaultdict(list)
    for rank, order in enumerate(flow.waits):
        for index, places in enumerate(order):
            for source, number in places:
                if source != rank:
                    action = flow.schedule.orders[rank][index]
                    carries = Do.F if action.do is Do.F else Do.B
                    channels[Channel(source, rank, carries)].append((number, index))
    return dict(channels)


def waits_with_buffers(flow: Flow, channels: Channels, buffers: int) -> Waits:
    """What each action waits for, where a channel holds `buffers` messages.

    Message n + `buffers` can be sent when the receiver has come to message n.
    """
    waits = [list(order) for order in flow.waits]
    for channel, messages in channels.items():
        sender = waits[channel.source]
        for (_, taken), (sent, _) in zip(messages, messages[buffers:], strict=False):
            sender[sent - 1] += ((channel.target, taken),)
    return waits


def least_buffers(schedule: Schedule) -> int:
    """How many messages a channel must hold, at the least, so that no rank waits for ever.

    The schedule must be one that `check_schedule` passes.
    """
    flow = Flow(schedule)
    channels = channels_of(flow)

    def ends(buffers: int) -> bool:
        done = run(waits_with_buffers(flow, channels, buffers)).done
        return done == [len(order) for order in schedule.orders]

    longest = max(map(len, channels.values()), default=1)
    return 1 + bisect_left(range(1, longest), True, key=ends)
