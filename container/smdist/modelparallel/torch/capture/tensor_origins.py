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
    """Origins of all tensors while a forward pass is recorded.

    Args:
        fake: The model's fake tensors.

    Attributes:
        facts: Shape, type and device of each value, by the value's name.
        aliases: Id of the memory of each value, as from the function `memory`, by the value's name.
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
        """Return the name of a tensor of the model in one of these memories; None if there is none.

        Args:
            places: Ids of memories, as from the function `memory`.
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
        """Register that a module that is no unit reads a tensor of the model.

        Args:
            tensor: The tensor that is read.
            name: Its name in the model.

        Returns:
            True if a unit changes the tensor.
        """
        self._read[memory(tensor)] = name
        return memory(tensor) in self._claimed

    def outdate(self, tensor: Tensor, module: str) -> None:
        """Mark the other tensors in a tensor's memory as stale, after it was changed in place.

        Args:
            tensor: The changed tensor.
            module: Name of the module that changed it.
        """
        for member in self._members.get(memory(tensor), ()):
            if member is not tensor:
                self._stale[id(member)] = module

    def stale_since(self, tensor: Tensor) -> str | None:
        """Return the name of the module that changed a tensor's memory through another tensor.

        None if no module has done so.
        """
        return self._stale.get(id(tensor))


def changed(leaves: Sequence[Any], written: set[int]) -> list[int]:
    """Return the positions of tensors whose memory was changed.

    If several tensors share a memory, only the first is listed.

    Args:
        leaves: Tensors and other arguments of a call.
        written: Ids of the changed memories, as from the function `memory`.
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
