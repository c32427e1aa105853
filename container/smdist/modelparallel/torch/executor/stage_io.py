# SPDX-License-Identifier: Apache-2.0
"""Values on their way forward and gradients on their way back, in one step of one rank.

A value goes from the stage that made it to each stage that reads it. Gradients of a value that come
back from several stages are summed in the order of these stages, so sums are the same every time.

`StageEdges` computes once, for each message between stages, its sender, receiver, memory layout and
tag:

    tag = base + 2 * (number of the edge * microbatches + microbatch) + direction

Gradients between two stages travel with one flag for each value. A gradient that does not exist
stays None at the receiver, as it would in one process. `check_values` checks that a stage sends
values of the captured shapes and types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import Edge, Placement
from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.p2p import P2P, PendingMessage
from smdist.modelparallel.torch.program.program import Program, TensorFacts

_BASE: Final = 1 << 24  # smaller tags belong to other users of the group
FORWARD: Final = 0
BACKWARD: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """Edge from one stage to another, for a value forward and its gradient back.

    Attributes:
        number: Number of the edge in the placement.
        edge: The edge of the placement.
        facts: Shape, type and device of the value.
        source_rank: Rank in the pipeline of the stage that makes the value.
        target_rank: Rank in the pipeline of the stage that reads it.
        shape: Shape in the order of memory, that of `permute(order)`.
        order: Dimensions from the largest stride to the smallest; None if they are in this order.
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
        """Tell whether both stages are on one rank."""
        return self.source_rank == self.target_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBundle:
    """All edges with gradients between two stages, in the order of the edges.

    Attributes:
        number: Number of the message with their flags.
        source: The stage that made the values.
        target: The stage that sends the gradients back.
        source_rank: Rank in the pipeline of the source.
        target_rank: Rank in the pipeline of the target.
        wires: The edges.
    """

    number: int
    source: int
    target: int
    source_rank: int
    target_rank: int
    wires: tuple[StageEdge, ...]

    @property
    def is_local(self) -> bool:
        """Tell whether both stages are on one rank."""
        return self.source_rank == self.target_rank


class StageEdges:
    """All edges of a placement.

    Attributes:
        incoming: Edges to each stage, by stage.
        outgoing: Edges from each stage, by stage.
        gradients_in: Bundles of gradients that a stage receives from its consumers, by stage.
        most_at_once: Largest number of messages of one action to one rank.
        gradients_out: Bundles of gradients that a stage sends back to producers, by stage.
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
        """Return the tag of one message; no other message in flight has the same."""
        return _BASE + 2 * (number * self._microbatches + microbatch) + direction


def _wire(number: int, edge: Edge, facts: TensorFacts, rank_of: tuple[int, ...]) -> StageEdge:
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
    )


def _order(facts: TensorFacts) -> tuple[int, ...] | None:
    """Return the order of dimensions in memory, in which a transposed tensor is sent."""
    dims = range(len(facts.shape))
    order = tuple(sorted(dims, key=lambda at: (-facts.stride[at], at)))
    is_usual = order == tuple(dims) or 0 in facts.stride
    return None if is_usual else order


def _bundles(wires: Iterable[StageEdge], *, first: int) -> list[GradientBundle]:
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
        )
        for number, ((source, target), members) in enumerate(sorted(groups.items()))
    ]


Gradients = Mapping[str, Tensor | None]


class StageIO:
    """Messages of one rank, and values passed between its own stages.

    Args:
        p2p: Sends and receives of this rank.
        stage_edges: All edges of the placement.
        window: Number of actions whose messages may be in flight to a rank.
    """

    def __init__(self, p2p: P2P, stage_edges: StageEdges, window: int) -> None:
        self._p2p, self._stage_edges = p2p, stage_edges
        self._most = window * stage_edges.most_at_once
        self._messages: dict[Action, list[PendingMessage]] = {}
        self._values: dict[tuple[int, int], Tensor] = {}  # by edge and microbatch
        self._gradients: dict[tuple[int, int], list[Tensor | None]] = {}  # by bundle and microbatch

    def announce(self, action: Action) -> None:
        """Post the receives of all values that an action reads."""
        self._messages[action] = list(self._posted(action))

    def values(self, action: Action) -> dict[str, Tensor]:
        """Return the values that a stage reads, by name: new tensors, in no autograd graph."""
        messages = iter(self._messages[action])
        return {
            wire.edge.value: self._value(wire, action.microbatch, messages)
            for wire in self._stage_edges.incoming[action.stage]
        }

    def gradients(self, action: Action) -> dict[str, Tensor]:
        """Return the summed gradients of a stage's sent values, by name; without absent ones."""
        messages = iter(self._messages[action])
        summed: dict[str, Tensor] = {}
        for bundle in self._stage_edges.gradients_in[action.stage]:
            arrived = self._arrived(bundle, action.microbatch, messages)
            for wire, gradient in zip(bundle.wires, arrived, strict=True):
                if gradient is not None:
                    before = summed.get(wire.edge.value)
                    summed[wire.edge.value] = gradient if before is None else before + gradient
        return summed

    def release(self, action: Action) -> None:
        """Count the buffers of an action that has ended as free."""
        for message in self._messages.pop(action):
            self._p2p.freed(message.buffer)

    def pass_on(self, action: Action, values: Mapping[str, Any]) -> None:
        """Send the values that a stage has made to all stages that read them."""
        for wire in self._stage_edges.outgoing[action.stage]:
            value = values[wire.edge.value]
            if wire.is_local:
                self._values[wire.number, action.microbatch] = value.detach()
            else:
                self._send(packed(value, wire), wire.target_rank, wire.number, action)

    def pass_back(self, action: Action, gradients: Gradients) -> None:
        """Send the gradients of the values that a stage received to the stages that made them."""
        for bundle in self._stage_edges.gradients_out[action.stage]:
            found = [gradients.get(wire.edge.value) for wire in bundle.wires]
            if bundle.is_local:
                self._gradients[bundle.number, action.microbatch] = found
                continue
            flags = torch.tensor([g is not None for g in found], dtype=torch.uint8)
            self._send(flags, bundle.source_rank, bundle.number, action)
            for wire, gradient in zip(bundle.wires, found, strict=True):
                tensor = _nothing(wire) if gradient is None else packed(gradient, wire)
                self._send(tensor, bundle.source_rank, wire.number, action)

    def _send(self, tensor: Tensor, peer: int, number: int, action: Action) -> None:
        direction = FORWARD if action.do is Do.F else BACKWARD
        tag = self._stage_edges.tag(number, action.microbatch, direction)
        self._p2p.send(tensor, (peer, direction), tag, most=self._most)

    def _posted(self, action: Action) -> Iterator[PendingMessage]:
        if action.do is Do.F:
            for wire in self._stage_edges.incoming[action.stage]:
                if not wire.is_local:
                    tag = self._stage_edges.tag(wire.number, action.microbatch, FORWARD)
                    yield self._p2p.receive(wire.shape, wire.facts.dtype, wire.source_rank, tag)
        elif action.do is not Do.W:
            for bundle in self._stage_edges.gradients_in[action.stage]:
                if not bundle.is_local:
                    yield from self._posted_bundle(bundle, action.microbatch)

    def _posted_bundle(self, bundle: GradientBundle, microbatch: int) -> Iterator[PendingMessage]:
        peer, tag = bundle.target_rank, self._stage_edges.tag
        flags = tag(bundle.number, microbatch, BACKWARD)
        yield self._p2p.receive((len(bundle.wires),), torch.uint8, peer, flags)
        for wire in bundle.wires:
            place = tag(wire.number, microbatch, BACKWARD)
            yield self._p2p.receive(wire.shape, wire.facts.dtype, peer, place)

    def _value(
        self, wire: StageEdge, microbatch: int, messages: Iterator[PendingMessage]
    ) -> Tensor:
        if wire.is_local:
            return self._values.pop((wire.number, microbatch))
        return unpacked(self._p2p.wait(next(messages)), wire)

    def _arrived(
        self, bundle: GradientBundle, microbatch: int, messages: Iterator[PendingMessage]
    ) -> list[Tensor | None]:
        if bundle.is_local:
            return self._gradients.pop((bundle.number, microbatch))
        flags = self._p2p.wait(next(messages)).tolist()
        buffers = [self._p2p.wait(next(messages)) for _ in bundle.wires]
        return [
            unpacked(buffer, wire) if flag else None
            for flag, buffer, wire in zip(flags, buffers, bundle.wires, strict=True)
        ]


def packed(tensor: Tensor, wire: StageEdge) -> Tensor:
    """Return a value in the form that is sent: on the CPU, contiguous in the edge's order."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if wire.order is not None:
        tensor = tensor.permute(wire.order)
    return tensor.to(torch.device("cpu")).resolve_conj().resolve_neg().contiguous()


def unpacked(buffer: Tensor, wire: StageEdge) -> Tensor:
    """Return the value in a buffer, on the device of the stage."""
    device = wire.facts.device
    if device.type != "cpu":
        buffer = buffer.to(_here(device))
    return buffer if wire.back is None else buffer.permute(wire.back)


def _here(device: torch.device) -> torch.device:
    """Return this process's device of a kind; the plan may have been made on another one."""
    module = torch.get_device_module(device)
    return torch.device(device.type, module.current_device())


def _nothing(wire: StageEdge) -> Tensor:
    """Return zeros to send in place of a gradient that does not exist."""
    return torch.zeros(wire.shape, dtype=wire.facts.dtype)


def check_values(
    values: Mapping[str, Any], wires: Iterable[StageEdge], program: Program, *, keeps: bool
) -> None:
    """Check that values have the shapes and types that were captured.

    Args:
        values: Values that the stage made, by name.
        wires: Edges from the stage.
        program: The captured program.
        keeps: True if gradients will come back.

    Raises:
        OptionError: A value differs; the error names the module that made it.
    """
    for wire in wires:
        value, facts = values[wire.edge.value], wire.facts
        if not isinstance(value, Tensor):
            raise _unlike(wire, program, f"is {type(value).__name__}, not a tensor")
        if value.shape != facts.shape or value.dtype != facts.dtype:
            found = f"{value.dtype}{tuple(value.shape)}"
            raise _unlike(wire, program, f"is {found}, not {facts.dtype}{facts.shape}")
        if keeps and value.requires_grad and not wire.edge.has_gradient:
            raise _unlike(wire, program, "has a gradient, and had none when it was captured")


def _unlike(wire: StageEdge, program: Program, what: str) -> OptionError:
    name = wire.edge.value
    makers = [call.module for call in program.calls if name in call.writes]
    maker = f" of {makers[0]!r}" if makers and makers[0] else ""
    return OptionError(
        f"{name!r}{maker} {what}",
        f"stage {wire.edge.target} was made for what was captured",
        "Capture the model as it is now, or keep the modules that read this value in the same unit",
    )
