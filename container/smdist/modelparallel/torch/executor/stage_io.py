# SPDX-License-Identifier: Apache-2.0
"""Exchange of values and gradients between stages, in one pipeline step on one rank.

A value is sent from the stage that computes it to each stage that reads it. In the backward pass,
each of these stages sends back a gradient of the value. The gradients are summed in the order of
the stages, so that sums are reproducible.

An edge is a value that one stage sends to another one. `StageEdges` computes once, for all messages
of each edge, their sender, receiver, memory layout and tag:

    tag = base + 2 * (number of the edge * number of microbatches + microbatch) + direction

The base is a constant. Messages of other Python modules have smaller tags. The direction is 0 for
values, and 1 for gradients.

A flag is sent for each gradient. If autograd computed no gradient for a value, the flag is 0. The
receiver then has None in place of the gradient, as in training on one process.

`check_values` checks that the sent values have the shapes and dtypes that they had when the model's
forward pass was recorded.
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
        """True if both stages are on one rank, so that no message is needed."""
        return self.source_rank == self.target_rank


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
    """

    number: int
    source: int
    target: int
    source_rank: int
    target_rank: int
    wires: tuple[StageEdge, ...]

    @property
    def is_local(self) -> bool:
        """True if both stages are on one rank, so that no message is needed."""
        return self.source_rank == self.target_rank


class StageEdges:
    """Messages that all stages of a pipeline exchange, sorted by stage.

    Args:
        placement: Stage of each operation, and the values sent between stages.
        facts: Shape, dtype, strides and device of each value, by name.
        rank_of: Pipeline rank of each stage.
        num_microbatches: Number of microbatches in a step.

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
        """Return the tag of a message; no other message of the step has the same tag.

        Args:
            number: Number of the `StageEdge` or `GradientBundle` to which the message belongs.
            microbatch: Number of the microbatch.
            direction: FORWARD in the forward pass, BACKWARD in the backward pass.
        """
        return _BASE + 2 * (number * self._microbatches + microbatch) + direction


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
        )
        for number, ((source, target), members) in enumerate(sorted(groups.items()))
    ]


Gradients = Mapping[str, Tensor | None]


class StageIO:
    """Sender and receiver of values and gradients for the stages of one rank, in one step.

    Stages on the same rank pass tensors to each other without a message.

    Args:
        p2p: Sender and receiver of this rank's messages.
        stage_edges: Messages that all stages exchange.
        window: Largest number of actions whose messages may be in flight to another rank.
    """

    def __init__(self, p2p: P2P, stage_edges: StageEdges, window: int) -> None:
        self._p2p, self._stage_edges = p2p, stage_edges
        self._most = window * stage_edges.most_at_once
        self._messages: dict[Action, list[PendingMessage]] = {}
        self._values: dict[tuple[int, int], Tensor] = {}  # by edge and microbatch
        self._gradients: dict[tuple[int, int], list[Tensor | None]] = {}  # by bundle and microbatch

    def post_receives(self, action: Action) -> None:
        """Start all receives of an action, without waiting for their data."""
        self._messages[action] = list(self._posted(action))

    def receive_values(self, action: Action) -> dict[str, Tensor]:
        """Wait for the values that a forward action reads from other stages.

        `post_receives` must have been called for this action.

        Returns:
            Values by name, detached from any autograd graph.
        """
        messages = iter(self._messages[action])
        return {
            wire.edge.value: self._value(wire, action.microbatch, messages)
            for wire in self._stage_edges.incoming[action.stage]
        }

    def receive_gradients(self, action: Action) -> dict[str, Tensor]:
        """Wait for the gradients that a backward action receives from later stages.

        `post_receives` must have been called for this action.

        Returns:
            Gradient of each value that the stage sent, by name: the sum over all stages that read
            the value. Values without a gradient are left out.
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
        """Subtract the receive buffers of an action that has ended from the memory counter."""
        for message in self._messages.pop(action):
            self._p2p.freed(message.buffer)

    def send_values(self, action: Action, values: Mapping[str, Any]) -> None:
        """Send the values of a forward action to all stages that read them.

        Args:
            action: Forward pass of one stage for one microbatch.
            values: Values that the stage computed, by name.
        """
        for wire in self._stage_edges.outgoing[action.stage]:
            value = values[wire.edge.value]
            if wire.is_local:
                self._values[wire.number, action.microbatch] = value.detach()
            else:
                self._send(packed(value, wire), wire.target_rank, wire.number, action)

    def send_gradients(self, action: Action, gradients: Gradients) -> None:
        """Send the gradients of a stage's inputs to the stages that computed these inputs.

        Args:
            action: Backward pass of the stage for one microbatch.
            gradients: Gradients by name of the input; None for an input without a gradient.
        """
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
        """Send a tensor to another pipeline rank.

        Args:
            tensor: Contiguous tensor on the CPU.
            peer: Pipeline rank of the receiver.
            number: Number from which the tag of the message is computed.
            action: Forward or backward action that sends the tensor.
        """
        direction = FORWARD if action.do is Do.F else BACKWARD
        tag = self._stage_edges.tag(number, action.microbatch, direction)
        self._p2p.send(tensor, (peer, direction), tag, most=self._most)

    def _posted(self, action: Action) -> Iterator[PendingMessage]:
        """Start the receives of an action, and yield their messages.

        The messages must be read in the same order later.
        """
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
        """Start to receive the gradients that one stage sends back.

        Args:
            bundle: Gradients to receive.
            microbatch: Number of the microbatch.

        Yields:
            First, a message that says which gradients exist. Then, one message for each gradient.
        """
        peer, tag = bundle.target_rank, self._stage_edges.tag
        flags = tag(bundle.number, microbatch, BACKWARD)
        yield self._p2p.receive((len(bundle.wires),), torch.uint8, peer, flags)
        for wire in bundle.wires:
            place = tag(wire.number, microbatch, BACKWARD)
            yield self._p2p.receive(wire.shape, wire.facts.dtype, peer, place)

    def _value(
        self, wire: StageEdge, microbatch: int, messages: Iterator[PendingMessage]
    ) -> Tensor:
        """Return the value of an edge: from a stage on this rank, or from the next message.

        Args:
            wire: Edge of the value.
            microbatch: Number of the microbatch.
            messages: Posted receives of the action that are not read yet.
        """
        if wire.is_local:
            return self._values.pop((wire.number, microbatch))
        return unpacked(self._p2p.wait(next(messages)), wire)

    def _arrived(
        self, bundle: GradientBundle, microbatch: int, messages: Iterator[PendingMessage]
    ) -> list[Tensor | None]:
        """Return the gradients that one stage sent back.

        Args:
            bundle: Gradients to receive.
            microbatch: Number of the microbatch.
            messages: Messages of the backward action that are not read yet.

        Returns:
            Gradient of each value in `bundle`, in order; None for a value without a gradient.
        """
        if bundle.is_local:
            return self._gradients.pop((bundle.number, microbatch))
        flags = self._p2p.wait(next(messages)).tolist()
        buffers = [self._p2p.wait(next(messages)) for _ in bundle.wires]
        return [
            unpacked(buffer, wire) if flag else None
            for flag, buffer, wire in zip(flags, buffers, bundle.wires, strict=True)
        ]


def packed(tensor: Tensor, wire: StageEdge) -> Tensor:
    """Convert a value or gradient to its message: dense, on the CPU, contiguous.

    Args:
        tensor: Value or gradient.
        wire: Edge of the value, whose `order` is the order of the message's dimensions.
    """
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if wire.order is not None:
        tensor = tensor.permute(wire.order)
    return tensor.to(torch.device("cpu")).resolve_conj().resolve_neg().contiguous()


def unpacked(buffer: Tensor, wire: StageEdge) -> Tensor:
    """Convert a received message to a tensor on this rank's device, with the value's dimensions.

    Args:
        buffer: Received message.
        wire: Edge of the value, whose `order` is the order of the message's dimensions.
    """
    device = wire.facts.device
    if device.type != "cpu":
        buffer = buffer.to(_local_device(device))
    return buffer if wire.back is None else buffer.permute(wire.back)


def _local_device(device: torch.device) -> torch.device:
    """Return the current device of this process, such as its own GPU.

    Args:
        device: Device of any process; the result has the same type, such as "cuda".
    """
    module = torch.get_device_module(device)
    return torch.device(device.type, module.current_device())


def _zeros(wire: StageEdge) -> Tensor:
    """Return zeros to send in place of a gradient that autograd did not compute.

    Args:
        wire: Edge of the value that has no gradient.
    """
    return torch.zeros(wire.shape, dtype=wire.facts.dtype)


def check_values(
    values: Mapping[str, Any], wires: Iterable[StageEdge], program: Program, *, keeps: bool
) -> None:
    """Check that the values of a stage have the shapes and dtypes of the recorded forward pass.

    Args:
        values: Values that the stage computed, by name.
        wires: Edges on which the values are sent.
        program: Recorded forward pass, in which the module that made a value is found.
        keeps: True if a backward pass follows. Then a value may require a gradient only if the
            recorded value did.

    Raises:
        OptionError: A value differs. The error names the value and the module that made it.
    """
    for wire in wires:
        value, facts = values[wire.edge.value], wire.facts
        if not isinstance(value, Tensor):
            raise _unlike(wire, program, f"is {type(value).__name__}, not a tensor", "type")
        if value.shape != facts.shape or value.dtype != facts.dtype:
            found = f"{value.dtype}{tuple(value.shape)}"
            kind = "dtype" if value.shape == facts.shape else "shape"
            raise _unlike(wire, program, f"is {found}, not {facts.dtype}{facts.shape}", kind)
        if keeps and value.requires_grad and not wire.edge.has_gradient:
            what = "requires a gradient, and required none when the model was captured"
            raise _unlike(wire, program, what, "gradient")


def _unlike(wire: StageEdge, program: Program, what: str, kind: str) -> OptionError:
    """Return the error for a value that differs from the recorded forward pass.

    Args:
        wire: Edge on which the value is sent.
        program: Recorded forward pass, in which the module that made the value is found.
        what: Difference, such as "is NoneType, not a tensor".
        kind: What differs, as one word: "type", "shape", "dtype" or "gradient".
    """
    name = wire.edge.value
    makers = [call.module for call in program.calls if name in call.writes]
    maker = f" of {makers[0]!r}" if makers and makers[0] else ""
    return OptionError(
        f"{name!r}{maker} {what}",
        f"stage {wire.edge.target} expects the value as it was when the forward pass was recorded",
        "Let the forward function return the same shapes and dtypes for each microbatch, or put"
        " the module that makes this value and the modules that read it into one module",
        about=name,
        kind=kind,
    )
