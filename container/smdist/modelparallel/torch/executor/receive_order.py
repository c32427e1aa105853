# SPDX-License-Identifier: Apache-2.0
"""Order of receives, for a backend that delivers the messages of a rank as they are sent.

NCCL ignores the tags of messages. If a rank needs the messages of another rank in another order
than that in which they are sent, it has to receive those before them, too. The schedule says which
messages these are: `ReceiveOrder` lists the messages of each sender, as the sender sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.accelerator import is_accelerator
from smdist.modelparallel.torch.executor.p2p import PendingMessage
from smdist.modelparallel.torch.executor.stage_edges import (
    BACKWARD,
    FORWARD,
    StageEdge,
    StageEdges,
)

Message = tuple[int, int, int]  # number of the edge, microbatch, FORWARD or BACKWARD
Post = Callable[[StageEdge, int, int, int], PendingMessage]


class ReceiveOrder:
    """Receives of one rank in one step, posted in the order in which each sender sends.

    Args:
        orders: Actions of each pipeline rank in this step, in order.
        stage_edges: Messages that all stages exchange.
        rank: Pipeline rank of this process.
    """

    def __init__(
        self, orders: Iterable[Iterable[Action]], stage_edges: StageEdges, rank: int
    ) -> None:
        self._edges: Mapping[int, StageEdge] = {wire.number: wire for wire in stage_edges.every}
        self._left = {
            sender: sent_messages(order, stage_edges, rank)
            for sender, order in enumerate(orders)
            if sender != rank
        }
        self._posted: dict[Message, PendingMessage] = {}

    def take(self, message: Message, sender: int, post: Post) -> PendingMessage:
        """Return a posted receive; post it, and all earlier ones of its sender, if necessary.

        Args:
            message: Message to receive; each may be taken once.
            sender: Pipeline rank of the sender.
            post: Function that posts the receive of an edge's message; it gets the edge, the
                sender, the microbatch and the direction.
        """
        while message not in self._posted:
            each = next(self._left[sender])
            number, microbatch, direction = each
            self._posted[each] = post(self._edges[number], sender, microbatch, direction)
        return self._posted.pop(message)


def sent_messages(
    order: Iterable[Action], stage_edges: StageEdges, receiver: int
) -> Iterator[Message]:
    """Yield the messages on devices that one rank sends to another, in the order of sending.

    Args:
        order: Actions of the sender, in order.
        stage_edges: Messages that all stages exchange.
        receiver: Pipeline rank of the receiver.
    """
    for action in order:
        if action.do is Do.F:
            for wire in stage_edges.outgoing[action.stage]:
                if wire.target_rank == receiver and is_accelerator(wire.facts.device):
                    yield wire.number, action.microbatch, FORWARD
        elif action.do is not Do.W:
            for bundle in stage_edges.gradients_out[action.stage]:
                for wire in bundle.wires if bundle.source_rank == receiver else ():
                    if is_accelerator(wire.facts.device):
                        yield wire.number, action.microbatch, BACKWARD
