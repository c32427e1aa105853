# SPDX-License-Identifier: Apache-2.0
"""Messages that follow from a schedule, and the buffers that they need.

A channel goes from one rank to another and carries either activations (F) or gradients (B). These
have separate channels even in the same direction, which occurs with several stages a rank: the
receiver may take activations and gradients in another order than they were sent. Messages of one
channel are received in the order in which they were sent; transports without tags rely on it.

Two rules for sending are modelled here.

  * Rendezvous: a message moves when its receiver reaches the action that takes it, and the sender
    continues meanwhile. A schedule runs under this rule if no action waits for itself.
  * Bounded buffers: a channel holds a limited number of messages that are sent and not yet taken. A
    sender blocks while its channel is full.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.schedule.dependencies import Flow, Waits, run


class Channel(NamedTuple):
    """Channel from one rank to another; F carries activations, B gradients."""

    source: int
    target: int
    carries: Do


Message = tuple[int, int]  # number of actions done when it is sent, and when it is taken
Channels = dict[Channel, list[Message]]  # messages in the order in which they are received


def channels_of(flow: Flow) -> Channels:
    """Return all messages, by channel."""
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
    """Return the waits of each action if a channel holds `buffers` messages.

    Message n + `buffers` can be sent once the receiver has reached message n.
    """
    waits = [list(order) for order in flow.waits]
    for channel, messages in channels.items():
        sender = waits[channel.source]
        for (_, taken), (sent, _) in zip(messages, messages[buffers:], strict=False):
            sender[sent - 1] += ((channel.target, taken),)
    return waits


def least_buffers(schedule: Schedule) -> int:
    """Return the smallest number of buffers per channel with which no rank waits forever.

    The schedule must be one that `check_schedule` accepts.
    """
    flow = Flow(schedule)
    channels = channels_of(flow)

    def ends(buffers: int) -> bool:
        done = run(waits_with_buffers(flow, channels, buffers)).done
        return done == [len(order) for order in schedule.orders]

    longest = max(map(len, channels.values()), default=1)
    return 1 + bisect_left(range(1, longest), True, key=ends)
