# SPDX-License-Identifier: Apache-2.0
"""Transfer of values to later stages and of gradients back, in one step of one rank.

A value is sent from the stage that made it to each stage that reads it. If several stages send back
gradients of a value, they are summed in the order of these stages, so sums are reproducible.

`StageEdges` computes once, for each message between stages, its sender, receiver, memory layout and
tag:

    tag = base + 2 * (number of the edge * microbatches + microbatch) + direction

Gradients between two stages are sent with one flag for each value. A gradient that does not exist
is None at the receiver, as it would be in one process. `check_values` checks that a stage sends
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

_BASE: Final = 1 << 24  # smaller tags are used by other senders in the group
FORWARD: Final = 0
BACKWARD: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEdge:
    """Edge between two stages: a value that one makes and the other reads, and its gradient.

    Attributes:
        number: Number of the edge in the placement.
        edge: Edge of the placement.
        facts: Shape, dtype, strides and device of the value.
        source_rank: Pipeline rank of the stage that makes the value.
        target_rank: Pipeline rank of the stage that reads it.
        shape: Shape of the message, after `permute(order)`.
        order: Dimensions from the largest stride to the smallest; None if they already are in this
            order.
        back: Inverse permutation of `order`; None if `order` is None.
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
    """Gradients that one stage sends back to another: a message of flags, then one per value.

    Attributes:
        number: Number of the message with the flags, which tell what gradients exist.
        source: Stage that made the values; it receives the gradients.
        target: Stage that read the values; it sends the gradients.
        source_rank: Pipeline rank of `source`.
        target_rank: Pipeline rank of `target`.
        wires: Edges of the values, in the order of the placement.
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
    """Edges between all stages of a placement, sorted by stage.

    Args:
        facts: Shape, dtype, strides and device of each value, by name.
        rank_of: Pipeline rank of each stage.

    Attributes:
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
        self._microbatches = num_microbatches
        wires = [_stage_edge(n, e, facts[e.value], rank_of) for n, e in enumerate(placement.edges)]
        stages = range(placement.num_stages)
        self.incoming = tuple(tuple(w for w in wires if w.edge.target == s) for s in stages)
        self.outgoing = tuple(tuple(w for w in wires if w.edge.source == s) for s in stages)
        bundles = _bundles(wires, first=len(wires))
        self.gradients_in = tuple(tuple(b for b in bundles if b.source == s) for s in stages)
        self.gradients_out = tuple(tuple(b for b in bundles if b.target == s) for s in stages)

        backs = (sum(1 + len(b.wires) for b in each) for each in self.gradients_out)
        self.most_at_once = max([1, *map(len, self.outgoing), *backs])

    def tag(self, number: int, microbatch: int, direction: int) -> int:
        """Return a tag that no other message of the step has.

        Args:
            number: Number of the edge, or of the bundle for its flags.
            direction: FORWARD for a value, BACKWARD for a gradient or flags.
        """
        return _BASE + 2 * (number * self._microbatches + microbatch) + direction


def _stage_edge(number: int, edge: Edge, facts: TensorFacts, rank_of: tuple[int, ...]) -> StageEdge:
    """Return the edge with its ranks and the layout of its messages."""
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
    """Return the dimensions from the largest stride to the smallest; None if they are sorted.

    A transposed tensor is sent in this order, so that it needs no copy.
    """
    dims = range(len(facts.shape))
    order = tuple(sorted(dims, key=lambda at: (-facts.stride[at], at)))
    is_usual = order == tuple(dims) or 0 in facts.stride
    return None if is_usual else order


def _bundles(wires: Iterable[StageEdge], *, first: int) -> list[GradientBundle]:
    """Group edges with gradients by their two stages, and number the groups from `first`."""
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
    """Transfer of values and gradients between a rank's stages and all stages linked to them.

    Between two stages of this rank, tensors are handed over without a message.

    Args:
        p2p: Sends and receives of this rank.
        stage_edges: Edges between all stages.
        window: Number of actions whose messages may be in flight to another rank.
    """

    def __init__(self, p2p: P2P, stage_edges: StageEdges, window: int) -> None:
        self._p2p, self._stage_edges = p2p, stage_edges
        self._most = window * stage_edges.most_at_once
        self._messages: dict[Action, list[PendingMessage]] = {}
        self._values: dict[tuple[int, int], Tensor] = {}  # by edge and microbatch
        self._gradients: dict[tuple[int, int], list[Tensor | None]] = {}  # by bundle and microbatch

    def post_receives(self, action: Action) -> None:
        """Start all receives of an action; do not wait for them."""
        self._messages[action] = list(self._posted(action))

    def receive_values(self, action: Action) -> dict[str, Tensor]:
        """Wait for the values that a stage reads; return them by name, without autograd graph."""
        messages = iter(self._messages[action])
        return {
            wire.edge.value: self._value(wire, action.microbatch, messages)
            for wire in self._stage_edges.incoming[action.stage]
        }

    def receive_gradients(self, action: Action) -> dict[str, Tensor]:
        """Wait for the gradients of the values that a stage sent.

        Returns:
            Sum of the gradients from all stages that read the value, by name; values without a
            gradient are left out.
        """
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
        """Subtract the receive buffers of a finished action from the memory counter."""
        for message in self._messages.pop(action):
            self._p2p.freed(message.buffer)

    def send_values(self, action: Action, values: Mapping[str, Any]) -> None:
        """Send values by name from a stage to all stages that read them."""
        for wire in self._stage_edges.outgoing[action.stage]:
            value = values[wire.edge.value]
            if wire.is_local:
                self._values[wire.number, action.microbatch] = value.detach()
            else:
                self._send(packed(value, wire), wire.target_rank, wire.number, action)

    def send_gradients(self, action: Action, gradients: Gradients) -> None:
        """Send gradients of received values by name to the stages that made the values."""
        for bundle in self._stage_edges.gradients_out[action.stage]:
            found = [gradients.get(wire.edge.value) for wire in bundle.wires]
            if bundle.is_local:
                self._gradients[bundle.number, action.microbatch] = found
                continue
            flags = torch.tensor([g is not None for g in found], dtype=torch.uint8)
            self._send(flags, bundle.source_rank, bundle.number, action)
            for wire, gradient in zip(bundle.wires, found, strict=True):
                tensor = _zeros(wire) if gradient is None else packed(gradient, wire)
                self._send(tensor, bundle.source_rank, wire.number, action)

    def _send(self, tensor: Tensor, peer: int, number: int, action: Action) -> None:
        """Send a tensor to a pipeline rank, under the tag of an edge's or a bundle's number."""
        direction = FORWARD if action.do is Do.F else BACKWARD
        tag = self._stage_edges.tag(number, action.microbatch, direction)
        self._p2p.send(tensor, (peer, direction), tag, most=self._most)

    def _posted(self, action: Action) -> Iterator[PendingMessage]:
        """Start the receives of an action one by one, and yield them."""
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
        """Start the receives of a bundle: its flags, then its gradients."""
        peer, tag = bundle.target_rank, self._stage_edges.tag
        flags = tag(bundle.number, microbatch, BACKWARD)
        yield self._p2p.receive((len(bundle.wires),), torch.uint8, peer, flags)
        for wire in bundle.wires:
            place = tag(wire.number, microbatch, BACKWARD)
            yield self._p2p.receive(wire.shape, wire.facts.dtype, peer, place)

    def _value(
        self, wire: StageEdge, microbatch: int, messages: Iterator[PendingMessage]
    ) -> Tensor:
        """Return the value of an edge: from this rank, or from the next of the messages."""
        if wire.is_local:
            return self._values.pop((wire.number, microbatch))
        return unpacked(self._p2p.wait(next(messages)), wire)

    def _arrived(
        self, bundle: GradientBundle, microbatch: int, messages: Iterator[PendingMessage]
    ) -> list[Tensor | None]:
        """Return the gradients of a bundle in the order of its edges; None for absent ones."""
        if bundle.is_local:
            return self._gradients.pop((bundle.number, microbatch))
        flags = self._p2p.wait(next(messages)).tolist()
        buffers = [self._p2p.wait(next(messages)) for _ in bundle.wires]
        return [
            unpacked(buffer, wire) if flag else None
            for flag, buffer, wire in zip(flags, buffers, bundle.wires, strict=True)
        ]


def packed(tensor: Tensor, wire: StageEdge) -> Tensor:
    """Convert a value to its message: dense, on the CPU, contiguous in the order of the edge."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if wire.order is not None:
        tensor = tensor.permute(wire.order)
    return tensor.to(torch.device("cpu")).resolve_conj().resolve_neg().contiguous()


def unpacked(buffer: Tensor, wire: StageEdge) -> Tensor:
    """Convert a received buffer to the value: on the stage's device, in its own dimensions."""
    device = wire.facts.device
    if device.type != "cpu":
        buffer = buffer.to(_local_device(device))
    return buffer if wire.back is None else buffer.permute(wire.back)


def _local_device(device: torch.device) -> torch.device:
    """Return this process's device of the same type, such as its own GPU."""
    module = torch.get_device_module(device)
    return torch.device(device.type, module.current_device())


def _zeros(wire: StageEdge) -> Tensor:
    """Return zeros to send in place of a gradient that does not exist."""
    return torch.zeros(wire.shape, dtype=wire.facts.dtype)


def check_values(
    values: Mapping[str, Any], wires: Iterable[StageEdge], program: Program, *, keeps: bool
) -> None:
    """Check that a stage's values have the shapes and dtypes of the capture.

    Args:
        values: Values that the stage made, by name.
        wires: Edges on which the values are sent.
        program: Program of the capture.
        keeps: True if a backward pass follows, so that gradients will be sent back.

    Raises:
        OptionError: A value differs; the error names it and the module that made it.
    """
    for wire in wires:
        value, facts = values[wire.edge.value], wire.facts
        if not isinstance(value, Tensor):
            raise _unlike(wire, program, f"is {type(value).__name__}, not a tensor")
        if value.shape != facts.shape or value.dtype != facts.dtype:
            found = f"{value.dtype}{tuple(value.shape)}"
            raise _unlike(wire, program, f"is {found}, not {facts.dtype}{facts.shape}")
        if keeps and value.requires_grad and not wire.edge.has_gradient:
            raise _unlike(
                wire, program, "requires a gradient, and required none when the model was captured"
            )


def _unlike(wire: StageEdge, program: Program, what: str) -> OptionError:
    """Return the error for a value that differs from the capture."""
    name = wire.edge.value
    makers = [call.module for call in program.calls if name in call.writes]
    maker = f" of {makers[0]!r}" if makers and makers[0] else ""
    return OptionError(
        f"{name!r}{maker} {what}",
        f"stage {wire.edge.target} expects the value as it was when the model was captured",
        "Let the forward function return the same shapes and dtypes for each microbatch, or put"
        " the module that makes this value and those that read it into one module",
    )
