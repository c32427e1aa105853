# SPDX-License-Identifier: Apache-2.0
"""Messages between ranks that follow from a schedule, and the number of buffers that they need.

A channel carries messages from one rank to another: either activations (F) or gradients (B). With
several stages on each rank, a rank may send both kinds to the same rank. The two kinds have
separate channels, because the receiver may need them in another order than they were sent. Within a
channel, messages are received in the order in which they were sent. Transports without message tags
rely on this order.

A channel has buffers for messages that were sent but not yet received. While all of them are in
use, the sender blocks. With unlimited buffers, a rank blocks only if it waits for an input.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.core.schedule.dependencies import Dependencies, Waits, run


class Channel(NamedTuple):
    """Channel from rank `source` to rank `target`; it carries activations (F) or gradients (B)."""

    source: int
    target: int
    carries: Do


# Number of actions that the sender has done when it sends the message, and that the receiver has
# done when it receives the message.
Message = tuple[int, int]
Channels = dict[Channel, list[Message]]  # messages in the order of their receives


def channels_of(dependencies: Dependencies) -> Channels:
    """Return all messages of a schedule, by channel, in the order in which they are received.

    A message is a pair (n, k): the sender sends the message after n actions, and the receiver
    receives the message after k actions.

    Args:
        dependencies: Schedule with the actions that each action waits for.
    """
    channels: defaultdict[Channel, list[Message]] = defaultdict(list)
    for rank, order in enumerate(dependencies.waits):
        for index, places in enumerate(order):
            for source, number in places:
                if source != rank:
                    action = dependencies.schedule.orders[rank][index]
                    carries = Do.F if action.do is Do.F else Do.B
                    channels[Channel(source, rank, carries)].append((number, index))
    return dict(channels)


def waits_with_buffers(dependencies: Dependencies, channels: Channels, buffers: int) -> Waits:
    """Return the places that each action waits for, if the number of buffers is limited.

    A place (rank, n) is reached when this rank has done its first n actions. A rank cannot send a
    message while `buffers` earlier messages of the same channel have not been received.

    Args:
        dependencies: Dependencies between the schedule's actions.
        channels: All messages of the schedule.
        buffers: Number of buffers of each channel.
    """
    waits = [list(order) for order in dependencies.waits]
    for channel, messages in channels.items():
        sender = waits[channel.source]
        for (_, taken), (sent, _) in zip(messages, messages[buffers:], strict=False):
            sender[sent - 1] += ((channel.target, taken),)
    return waits


def least_buffers(schedule: Schedule) -> int:
    """Return the smallest number of buffers of a channel with which the schedule has no deadlock.

    The schedule must be one that `check_schedule` accepts.
    """
    dependencies = Dependencies(schedule)
    channels = channels_of(dependencies)

    def ends(buffers: int) -> bool:
        done = run(waits_with_buffers(dependencies, channels, buffers)).done
        return done == [len(order) for order in schedule.orders]

    longest = max(map(len, channels.values()), default=1)
    return 1 + bisect_left(range(1, longest), True, key=ends)
