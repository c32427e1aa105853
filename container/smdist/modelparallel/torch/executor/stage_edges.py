# SPDX-License-Identifier: Apache-2.0
"""Values that stages send to each other (edges): sender, receiver and memory layout of messages.

`StageEdges` computes this once for all messages of a recorded forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.placement import Edge, Placement
from smdist.modelparallel.torch.program.program import TensorFacts

FORWARD: Final = 0  # direction of values
BACKWARD: Final = 1  # direction of gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """Value that one stage sends to another (an edge), and the layout of the messages for it.

    Attributes:
        number: Index of the edge among all edges of the model.
        edge: Name of the value, both stages, and a flag: True if a gradient is sent back.
        facts: Shape, dtype, strides and device of the value when the forward pass was recorded.
        source_rank: Pipeline rank of the stage that computes the value.
        target_rank: Pipeline rank of the stage that reads the value.
        shape: Shape of the message, whose dimensions are in the order `order`.
        order: Dimensions of the value from the largest stride to the smallest; None if they already
            are in this order.
        back: Inverse permutation of `order`; None if `order` is None.
        is_local: True if both stages are on one rank, so that no message is needed.
    """

    number: int
    edge: Edge
    facts: TensorFacts
    source_rank: int
    target_rank: int
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    back: tuple[int, ...] | None
    is_local: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBundle:
    """Gradients that one stage sends back to another, for all values that it received from there.

    The first message has a flag for each gradient: 0 if autograd computed no such gradient. Then
    each gradient follows in a message of its own.

    Attributes:
        number: Number from which the tag of the first message is computed.
        source: Stage that computed the values; it receives the gradients.
        target: Stage that read the values; it sends the gradients.
        source_rank: Pipeline rank of `source`.
        target_rank: Pipeline rank of `target`.
        wires: Values whose gradients are sent, each with the layout of its messages.
        is_local: True if both stages are on one rank, so that no message is needed.
    """

    number: int
    source: int
    target: int
    source_rank: int
    target_rank: int
    wires: tuple[StageEdge, ...]
    is_local: bool


class StageEdges:
    """Messages that all stages of a pipeline exchange, sorted by stage.

    Args:
        placement: Stage of each operation, and the values sent between stages.
        facts: Shape, dtype, strides and device of each value, or of this rank's part, by name.
        rank_of: Pipeline rank of each stage.
        num_microbatches: Number of microbatches in a step.

    Attributes:
        num_microbatches: The argument of the same name.
        every: All edges, in the order of their numbers.
        incoming: Edges of the values that each stage reads, by stage.
        outgoing: Edges of the values that each stage sends, by stage.
        gradients_in: Gradients that each stage receives from the readers of its values, by stage.
        gradients_out: Gradients that each stage sends for the values that it read, by stage.
        most_at_once: Largest number of messages that one action sends.
    """

    def __init__(
        self,
        placement: Placement,
        facts: Mapping[str, TensorFacts],
        rank_of: tuple[int, ...],
        num_microbatches: int,
    ) -> None:
        self.num_microbatches = num_microbatches
        wires = [_stage_edge(n, e, facts[e.value], rank_of) for n, e in enumerate(placement.edges)]
        self.every = tuple(wires)
        stages = range(placement.num_stages)
        self.incoming = tuple(tuple(w for w in wires if w.edge.target == s) for s in stages)
        self.outgoing = tuple(tuple(w for w in wires if w.edge.source == s) for s in stages)
        bundles = _bundles(wires, first=len(wires))
        self.gradients_in = tuple(tuple(b for b in bundles if b.source == s) for s in stages)
        self.gradients_out = tuple(tuple(b for b in bundles if b.target == s) for s in stages)

        backs = (sum(1 + len(b.wires) for b in each) for each in self.gradients_out)
        self.most_at_once = max([1, *map(len, self.outgoing), *backs])


def _stage_edge(number: int, edge: Edge, facts: TensorFacts, rank_of: tuple[int, ...]) -> StageEdge:
    """Return an edge of a placement with its ranks and the layout of its messages.

    Args:
        number: Index of the edge in the placement.
        edge: Value that one stage sends to another.
        facts: Shape, dtype, strides and device of the value.
        rank_of: Pipeline rank of each stage.
    """
    order = _order(facts)
    shape = facts.shape if order is None else tuple(facts.shape[each] for each in order)
    return StageEdge(
        number=number,
        edge=edge,
        facts=facts,
        source_rank=rank_of[edge.source],
        target_rank=rank_of[edge.target],
        shape=shape,
        order=order,
        back=None if order is None else tuple(order.index(at) for at in range(len(order))),
        is_local=rank_of[edge.source] == rank_of[edge.target],
    )


def _order(facts: TensorFacts) -> tuple[int, ...] | None:
    """Return the dimensions of a tensor from the largest stride to the smallest.

    A message has its dimensions in this order, so a transposed tensor is sent without a copy. The
    result is None if the dimensions already are in this order, or if a stride is 0.
    """
    dims = range(len(facts.shape))
    order = tuple(sorted(dims, key=lambda at: (-facts.stride[at], at)))
    is_usual = order == tuple(dims) or 0 in facts.stride
    return None if is_usual else order


def _bundles(wires: Iterable[StageEdge], *, first: int) -> list[GradientBundle]:
    """Group the edges that have gradients: one group for each pair of stages.

    Args:
        wires: Edges between stages.
        first: Number of the first group; further groups have the next numbers.
    """
    groups: dict[tuple[int, int], list[StageEdge]] = {}
    for wire in wires:
        if wire.edge.has_gradient:
            groups.setdefault((wire.edge.source, wire.edge.target), []).append(wire)
    return [
        GradientBundle(
            number=first + number,
            source=source,
            target=target,
            source_rank=members[0].source_rank,
            target_rank=members[0].target_rank,
            wires=tuple(members),
            is_local=members[0].is_local,
        )
        for number, ((source, target), members) in enumerate(sorted(groups.items()))
    ]
