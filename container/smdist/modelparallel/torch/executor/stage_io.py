# SPDX-License-Identifier: Apache-2.0
"""Exchange of values and gradients between stages, in one pipeline step on one rank.

A value is sent from the stage that computes it to each stage that reads it. In the backward pass,
each of these stages sends back a gradient of the value. The gradients are summed in the order of
the stages, so that sums are reproducible.

An edge is a value that one stage sends to another one. `StageEdges` has the sender, the receiver
and the memory layout of its messages. They have tags:

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
from typing import Any, Final

import torch
from torch import Tensor

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.p2p import CPU, P2P, PendingMessage
from smdist.modelparallel.torch.executor.receive_order import ReceiveOrder
from smdist.modelparallel.torch.executor.stage_edges import (
    BACKWARD,
    FORWARD,
    GradientBundle,
    StageEdge,
    StageEdges,
)
from smdist.modelparallel.torch.program.program import Program

_BASE: Final = 1 << 24  # smaller tags are used by other senders in the group


Gradients = Mapping[str, Tensor | None]


class StageIO:
    """Sender and receiver of values and gradients for the stages of one rank, in one step.

    Stages on the same rank pass tensors to each other without a message.

    Args:
        p2p: Sender and receiver of this rank's messages.
        stage_edges: Messages that all stages exchange.
        window: Largest number of actions whose messages may be in flight to another rank.
        receive_order: Order of the receives on this rank's device; None if a message is received
            when it is needed.
    """

    def __init__(
        self,
        p2p: P2P,
        stage_edges: StageEdges,
        window: int,
        receive_order: ReceiveOrder | None = None,
    ) -> None:
        self._p2p, self._stage_edges, self._receive_order = p2p, stage_edges, receive_order
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
        self._p2p.end_action()

    def wait_for_device(self) -> None:
        """Wait until the device has run what is queued, if it sends and receives messages."""
        self._p2p.wait_for_device()

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
                tensor = packed(value, wire, self._p2p.place(wire.facts.device))
                self._send(tensor, wire.target_rank, wire.number, action)

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
                place = self._p2p.place(wire.facts.device)
                tensor = _packed_gradient(gradient, wire, place)
                self._send(tensor, bundle.source_rank, wire.number, action)

    def _send(self, tensor: Tensor, peer: int, number: int, action: Action) -> None:
        """Send a tensor to another pipeline rank.

        Args:
            tensor: Contiguous tensor, where `P2P.place` says.
            peer: Pipeline rank of the receiver.
            number: Number from which the tag of the message is computed.
            action: Forward or backward action that sends the tensor.
        """
        direction = FORWARD if action.do is Do.F else BACKWARD
        tag = self._tag(number, action.microbatch, direction)
        self._p2p.send(tensor, (peer, direction), tag, most=self._most)

    def _posted(self, action: Action) -> Iterator[PendingMessage]:
        """Start the receives of an action, and yield their messages.

        The messages must be read in the same order later.
        """
        if action.do is Do.F:
            for wire in self._stage_edges.incoming[action.stage]:
                if not wire.is_local:
                    yield self._posted_edge(wire, wire.source_rank, action.microbatch, FORWARD)
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
        peer, shape = bundle.target_rank, (len(bundle.wires),)
        tag = self._tag(bundle.number, microbatch, BACKWARD)
        yield self._p2p.receive(shape, torch.uint8, peer, tag, CPU)
        for wire in bundle.wires:
            yield self._posted_edge(wire, peer, microbatch, BACKWARD)

    def _posted_edge(
        self, wire: StageEdge, peer: int, microbatch: int, direction: int
    ) -> PendingMessage:
        """Start to receive a value or gradient, or return its receive if it was started before.

        Args:
            wire: Edge of the value.
            peer: Pipeline rank of the sender.
            microbatch: Number of the microbatch.
            direction: FORWARD for a value, BACKWARD for a gradient.
        """
        if self._receive_order is None or wire.facts.device.type == "cpu":
            return self._post(wire, peer, microbatch, direction)
        return self._receive_order.take((wire.number, microbatch, direction), peer, self._post)

    def _post(self, wire: StageEdge, peer: int, microbatch: int, direction: int) -> PendingMessage:
        tag = self._tag(wire.number, microbatch, direction)
        place = self._p2p.place(wire.facts.device)
        return self._p2p.receive(wire.shape, wire.facts.dtype, peer, tag, place)

    def _tag(self, number: int, microbatch: int, direction: int) -> int:
        """Return the tag of a message; no other message of the step has the same tag.

        Args:
            number: Number of the `StageEdge` or `GradientBundle` to which the message belongs.
            microbatch: Number of the microbatch.
            direction: FORWARD in the forward pass, BACKWARD in the backward pass.
        """
        return _BASE + 2 * (number * self._stage_edges.num_microbatches + microbatch) + direction

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


def packed(tensor: Tensor, wire: StageEdge, place: torch.device) -> Tensor:
    """Convert a value or gradient to its message: dense, contiguous, on a device.

    Args:
        tensor: Value or gradient.
        wire: Edge of the value, whose `order` is the order of the message's dimensions.
        place: Device of the message.
    """
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if wire.order is not None:
        tensor = tensor.permute(wire.order)
    return tensor.to(place).resolve_conj().resolve_neg().contiguous()


def unpacked(buffer: Tensor, wire: StageEdge) -> Tensor:
    """Convert a received message to a tensor on the value's device, with the value's dimensions.

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


def _packed_gradient(gradient: Tensor | None, wire: StageEdge, place: torch.device) -> Tensor:
    return _zeros(wire, place) if gradient is None else packed(gradient, wire, place)


def _zeros(wire: StageEdge, place: torch.device) -> Tensor:
    """Return zeros to send in place of a gradient that autograd did not compute.

    Args:
        wire: Edge of the value that has no gradient.
        place: Device of the zeros.
    """
    return torch.zeros(wire.shape, dtype=wire.facts.dtype, device=place)


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
