# SPDX-License-Identifier: Apache-2.0
"""What travels between stages, worked out once: who sends what to whom, in which form, with which
tag.

    tag = base + 2 * (number of the wire * microbatches + microbatch) + direction

Gradients of all values between two stages come with a flag each: one that does not exist stays
None at the other end, as it would in one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.core.placement import Edge, Placement
from smdist.modelparallel.torch.program import TensorFacts

_BASE: Final = 1 << 24  # below are the tags of others that use the same group
FORWARD: Final = 0
BACKWARD: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A value on its way from one stage to another, with its gradient on the way back.

    Attributes:
        number: Tells wires apart.
        source_rank: In the pipeline.
        target_rank: In the pipeline.
        shape: In the order of memory: of `permute(order)`.
        order: Dimensions from the largest stride on; None where that is the order they have.
        back: The inverse of `order`.
    """

    number: int
    edge: Edge
    facts: TensorFacts
    source_rank: int
    target_rank: int
    shape: tuple[int, ...]
    order: tuple[int, ...] | None
    back: tuple[int, ...] | None

    @property
    def is_local(self) -> bool:
        """Whether both stages are on one rank."""
        return self.source_rank == self.target_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """All wires with gradients between two stages, in the order of the edges.

    Attributes:
        number: Of the message with their flags.
    """

    number: int
    source: int
    target: int
    source_rank: int
    target_rank: int
    wires: tuple[Wire, ...]

    @property
    def is_local(self) -> bool:
        """Whether both stages are on one rank."""
        return self.source_rank == self.target_rank


class Wiring:
    """All wires of a placement.

    Attributes:
        incoming: Wires to each stage, by stage.
        outgoing: Wires from each stage.
        gradients_in: Bundles whose gradients come back to a stage, from its consumers.
        most_at_once: Messages of one action to one rank, at most.
        gradients_out: Bundles whose gradients a stage sends back to where values came from.
    """

    def __init__(
        self,
        placement: Placement,
        facts: Mapping[str, TensorFacts],
        rank_of: tuple[int, ...],
        num_microbatches: int,
    ) -> None:
        self._microbatches = num_microbatches
        wires = [_wire(n, e, facts[e.value], rank_of) for n, e in enumerate(placement.edges)]
        stages = range(placement.num_stages)
        self.incoming = tuple(tuple(w for w in wires if w.edge.target == s) for s in stages)
        self.outgoing = tuple(tuple(w for w in wires if w.edge.source == s) for s in stages)
        bundles = _bundles(wires, first=len(wires))
        self.gradients_in = tuple(tuple(b for b in bundles if b.source == s) for s in stages)
        self.gradients_out = tuple(tuple(b for b in bundles if b.target == s) for s in stages)

        backs = (sum(1 + len(b.wires) for b in each) for each in self.gradients_out)
        self.most_at_once = max([1, *map(len, self.outgoing), *backs])

    def tag(self, number: int, microbatch: int, direction: int) -> int:
        """Of one message: the only one of its kind on the way."""
        return _BASE + 2 * (number * self._microbatches + microbatch) + direction


def _wire(number: int, edge: Edge, facts: TensorFacts, rank_of: tuple[int, ...]) -> Wire:
    order = _order(facts)
    shape = facts.shape if order is None else tuple(facts.shape[each] for each in order)
    return Wire(
        number=number,
        edge=edge,
        facts=facts,
        source_rank=rank_of[edge.source],
        target_rank=rank_of[edge.target],
        shape=shape,
        order=order,
        back=None if order is None else tuple(order.index(at) for at in range(len(order))),
    )


def _order(facts: TensorFacts) -> tuple[int, ...] | None:
    """A tensor that is transposed in memory travels as it lies there."""
    dims = range(len(facts.shape))
    order = tuple(sorted(dims, key=lambda at: (-facts.stride[at], at)))
    is_usual = order == tuple(dims) or 0 in facts.stride
    return None if is_usual else order


def _bundles(wires: Iterable[Wire], *, first: int) -> list[Bundle]:
    groups: dict[tuple[int, int], list[Wire]] = {}
    for wire in wires:
        if wire.edge.has_gradient:
            groups.setdefault((wire.edge.source, wire.edge.target), []).append(wire)
    return [
        Bundle(
            number=first + number,
            source=source,
            target=target,
            source_rank=members[0].source_rank,
            target_rank=members[0].target_rank,
            wires=tuple(members),
        )
        for number, ((source, target), members) in enumerate(sorted(groups.items()))
    ]
