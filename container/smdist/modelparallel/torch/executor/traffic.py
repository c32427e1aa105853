# SPDX-License-Identifier: Apache-2.0
"""Values on their way forward and gradients on their way back, in one step of one rank.

A value goes from the stage that made it to each stage that reads it. Gradients that come back from
several stages are summed in the order of these stages, so sums are the same every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.post import Parcel, Post, packed, unpacked
from smdist.modelparallel.torch.executor.wiring import BACKWARD, FORWARD, Bundle, Wire, Wiring

Gradients = Mapping[str, Tensor | None]


class Traffic:
    """What one rank sends, receives, and hands over between stages of its own.

    Args:
        window: How many actions' messages may be on their way to a rank.
    """

    def __init__(self, post: Post, wiring: Wiring, window: int) -> None:
        self._post, self._wiring = post, wiring
        self._most = window * wiring.most_at_once
        self._parcels: dict[Action, list[Parcel]] = {}
        self._values: dict[tuple[int, int], Tensor] = {}  # by wire and microbatch
        self._gradients: dict[tuple[int, int], list[Tensor | None]] = {}  # by bundle

    def announce(self, action: Action) -> None:
        """Begin to receive all that an action will read."""
        self._parcels[action] = list(self._posted(action))

    def values(self, action: Action) -> dict[str, Tensor]:
        """What a stage reads, by name: tensors of their own, in no graph."""
        parcels = iter(self._parcels[action])
        return {
            wire.edge.value: self._value(wire, action.microbatch, parcels)
            for wire in self._wiring.incoming[action.stage]
        }

    def gradients(self, action: Action) -> dict[str, Tensor]:
        """Of the values that a stage has passed on, by name; those that have none are not there."""
        parcels = iter(self._parcels[action])
        summed: dict[str, Tensor] = {}
        for bundle in self._wiring.gradients_in[action.stage]:
            arrived = self._arrived(bundle, action.microbatch, parcels)
            for wire, gradient in zip(bundle.wires, arrived, strict=True):
                if gradient is not None:
                    before = summed.get(wire.edge.value)
                    summed[wire.edge.value] = gradient if before is None else before + gradient
        return summed

    def release(self, action: Action) -> None:
        """It has ended: its buffers are others' from now on, or nobody's."""
        for parcel in self._parcels.pop(action):
            self._post.freed(parcel.buffer)

    def pass_on(self, action: Action, values: Mapping[str, Any]) -> None:
        """Send what a stage has made to all stages that read it."""
        for wire in self._wiring.outgoing[action.stage]:
            value = values[wire.edge.value]
            if wire.is_local:
                self._values[wire.number, action.microbatch] = value.detach()
            else:
                self._send(packed(value, wire), wire.target_rank, wire.number, action)

    def pass_back(self, action: Action, gradients: Gradients) -> None:
        """Send the gradients of what a stage has received to where it came from."""
        for bundle in self._wiring.gradients_out[action.stage]:
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
        tag = self._wiring.tag(number, action.microbatch, direction)
        self._post.send(tensor, (peer, direction), tag, most=self._most)

    def _posted(self, action: Action) -> Iterator[Parcel]:
        if action.do is Do.F:
            for wire in self._wiring.incoming[action.stage]:
                if not wire.is_local:
                    tag = self._wiring.tag(wire.number, action.microbatch, FORWARD)
                    yield self._post.receive(wire.shape, wire.facts.dtype, wire.source_rank, tag)
        elif action.do is not Do.W:
            for bundle in self._wiring.gradients_in[action.stage]:
                if not bundle.is_local:
                    yield from self._posted_bundle(bundle, action.microbatch)

    def _posted_bundle(self, bundle: Bundle, microbatch: int) -> Iterator[Parcel]:
        peer, tag = bundle.target_rank, self._wiring.tag
        flags = tag(bundle.number, microbatch, BACKWARD)
        yield self._post.receive((len(bundle.wires),), torch.uint8, peer, flags)
        for wire in bundle.wires:
            place = tag(wire.number, microbatch, BACKWARD)
            yield self._post.receive(wire.shape, wire.facts.dtype, peer, place)

    def _value(self, wire: Wire, microbatch: int, parcels: Iterator[Parcel]) -> Tensor:
        if wire.is_local:
            return self._values.pop((wire.number, microbatch))
        return unpacked(self._post.wait(next(parcels)), wire)

    def _arrived(
        self, bundle: Bundle, microbatch: int, parcels: Iterator[Parcel]
    ) -> list[Tensor | None]:
        if bundle.is_local:
            return self._gradients.pop((bundle.number, microbatch))
        flags = self._post.wait(next(parcels)).tolist()
        buffers = [self._post.wait(next(parcels)) for _ in bundle.wires]
        return [
            unpacked(buffer, wire) if flag else None
            for flag, buffer, wire in zip(flags, buffers, bundle.wires, strict=True)
        ]


def _nothing(wire: Wire) -> Tensor:
    """In place of a gradient that does not exist."""
    return torch.zeros(wire.shape, dtype=wire.facts.dtype)
