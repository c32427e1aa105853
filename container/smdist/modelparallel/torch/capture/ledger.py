# SPDX-License-Identifier: Apache-2.0
"""Whose a tensor is: a value of the graph, the model's, or nobody's. Tensors are known by identity.

A change in place makes a new value of the same tensor. Other tensors in the same memory are stale
from then on: whoever reads one would have to be on the stage of the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

from torch import Tensor

from smdist.modelparallel.torch.capture.fakes import FakeModel, memory
from smdist.modelparallel.torch.program import Argument, Held, Ref, TensorFacts


class Ledger:
    """Everything that is known of tensors while a forward pass is recorded.

    Attributes:
        facts: Of each value, by name.
        aliases: The memory of each value, by name.
    """

    def __init__(self, fake: FakeModel) -> None:
        self.facts: dict[str, TensorFacts] = {}
        self.aliases: dict[str, int] = {}
        self._sources: dict[int, Argument] = {key: Held(name) for key, name in fake.names.items()}
        self._made = fake.mode.made
        self._weights = {memory(tensor): name for name, tensor in fake.fakes.items()}
        self._members: dict[int, list[Tensor]] = {}  # alive, so that ids stay theirs
        self._stale: dict[int, str] = {}
        self._read: dict[int, str] = {}
        self._claimed: set[int] = set()

    def source(self, tensor: Tensor) -> Argument | None:
        """What a tensor is; None if it was never seen."""
        return self._sources.get(id(tensor))

    def publish(self, tensor: Tensor, name: str) -> Ref:
        """Know a tensor as a value from now on."""
        place = memory(tensor)
        self._made.append(ref(tensor))
        self._sources[id(tensor)] = Ref(name)
        self._members.setdefault(place, []).append(tensor)
        self.aliases[name] = place
        self.facts[name] = TensorFacts(
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
            dtype=tensor.dtype,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
        )
        return Ref(name)

    def weight_in(self, places: set[int]) -> str | None:
        """The name of a parameter, buffer or attribute in one of these memories."""
        return next((self._weights[place] for place in places if place in self._weights), None)

    def claim(self, buffers: Iterable[Tensor]) -> str | None:
        """A unit changes these: the name of one that was read from outside already."""
        places = {memory(buffer) for buffer in buffers}
        self._claimed |= places
        return next((self._read[place] for place in places if place in self._read), None)

    def is_claimed(self, tensor: Tensor, name: str) -> bool:
        """Whether a unit changes this tensor of the model's, which is read under this name."""
        self._read[memory(tensor)] = name
        return memory(tensor) in self._claimed

    def outdate(self, tensor: Tensor, module: str) -> None:
        """`module` changes a tensor in place: all others in its memory are stale."""
        for member in self._members.get(memory(tensor), ()):
            if member is not tensor:
                self._stale[id(member)] = module

    def stale_since(self, tensor: Tensor) -> str | None:
        """The module that changed a tensor's memory through another one."""
        return self._stale.get(id(tensor))


def changed(leaves: Sequence[Any], written: set[int]) -> list[int]:
    """Positions of the tensors that were changed: of several in one memory the first."""
    found: dict[int, int] = {}
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and memory(leaf) in written:
            found.setdefault(memory(leaf), at)
    return list(found.values())


def shares(leaves: Sequence[Any], position: int) -> bool:
    """Whether another of these tensors is in the memory of the one at a position."""
    own = leaves[position]
    return any(
        isinstance(leaf, Tensor) and leaf is not own and memory(leaf) == memory(own)
        for leaf in leaves
    )
