# SPDX-License-Identifier: Apache-2.0
"""Origins of the tensors in a forward pass: a value of the program, or a tensor of the model.

A tensor is recognised by its id. A change in place turns a tensor into a new value. Other tensors
in the same memory are then stale. Reading a stale tensor is an error: on another stage it would not
have the change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

from torch import Tensor

from smdist.modelparallel.torch.capture.fake_model import FakeModel, memory
from smdist.modelparallel.torch.program.program import Argument, ModelTensor, Ref, TensorFacts


class TensorOrigins:
    """Names of all tensors in a forward pass that is being recorded.

    A tensor is a recorded value, or a parameter, buffer or tensor attribute of the model.

    Args:
        fake: Fake tensors of the model, with their names.

    Attributes:
        facts: Shape, type and device of each recorded value, by name.
        aliases: Id of the storage of each recorded value, by name.
    """

    def __init__(self, fake: FakeModel) -> None:
        self.facts: dict[str, TensorFacts] = {}
        self.aliases: dict[str, int] = {}
        self._sources: dict[int, Argument] = {
            key: ModelTensor(name) for key, name in fake.names.items()
        }
        self._made = fake.mode.made
        self._weights = {memory(tensor): name for name, tensor in fake.fakes.items()}
        # keeps tensors alive, so that their ids stay valid
        self._members: dict[int, list[Tensor]] = {}
        self._stale: dict[int, str] = {}
        self._read: dict[int, str] = {}
        self._claimed: set[int] = set()

    def source(self, tensor: Tensor) -> Argument | None:
        """Return the program's reference to a tensor; None if the tensor's origin is unknown."""
        return self._sources.get(id(tensor))

    def publish(self, tensor: Tensor, name: str) -> Ref:
        """Register a tensor as the value `name` of the program, and return the reference to it."""
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
        """Return the name of a tensor of the model that uses one of the given storages.

        The result is None if there is no such tensor.

        Args:
            places: Ids of storages; the function `memory` returns such an id for a tensor.
        """
        return next((self._weights[place] for place in places if place in self._weights), None)

    def claim(self, buffers: Iterable[Tensor]) -> str | None:
        """Register that a unit changes these buffers, so that no other module may read them.

        Returns:
            The name of a buffer that another module has read already; None if there is none.
        """
        places = {memory(buffer) for buffer in buffers}
        self._claimed |= places
        return next((self._read[place] for place in places if place in self._read), None)

    def is_claimed(self, tensor: Tensor, name: str) -> bool:
        """Return True if a unit changes this tensor; note that code outside of units reads it.

        A unit is a module that is not split further. Because of the note, a unit that changes the
        tensor later is found by `claim`.

        Args:
            tensor: Tensor of the model, which is read outside of units.
            name: Name of the tensor in the model.
        """
        self._read[memory(tensor)] = name
        return memory(tensor) in self._claimed

    def outdate(self, tensor: Tensor, module: str) -> None:
        """Mark all other tensors that share memory with `tensor` as stale.

        Args:
            tensor: Tensor that was changed in place.
            module: Name of the module that changed `tensor`.
        """
        for member in self._members.get(memory(tensor), ()):
            if member is not tensor:
                self._stale[id(member)] = module

    def stale_since(self, tensor: Tensor) -> str | None:
        """Return the name of the module that made a tensor stale; None if the tensor is not stale.

        A tensor is stale after a module changed another tensor in the same memory in place.
        """
        return self._stale.get(id(tensor))


def changed(leaves: Sequence[Any], written: set[int]) -> list[int]:
    """Return the positions of tensors whose memory was changed.

    If several tensors share a memory, only the first is listed.

    Args:
        leaves: Tensors and other arguments of a call.
        written: Ids of the changed storages; the function `memory` returns such an id for a tensor.
    """
    found: dict[int, int] = {}
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and memory(leaf) in written:
            found.setdefault(memory(leaf), at)
    return list(found.values())


def shares(leaves: Sequence[Any], position: int) -> bool:
    """Return True if another tensor of the list shares memory with the tensor at `position`."""
    own = leaves[position]
    return any(
        isinstance(leaf, Tensor) and leaf is not own and memory(leaf) == memory(own)
        for leaf in leaves
    )
