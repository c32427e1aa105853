# SPDX-License-Identifier: Apache-2.0
"""Detect tensors that a unit uses, but neither holds nor gets as arguments.

A module can reach other tensors through Python: through a list that hides a module from PyTorch, or
through a tensor that was kept in a variable. In one process this works; another stage would have a
copy that is never trained, or nothing. So functions are watched inside units too, for weights of
other modules and for tensors that were made outside the unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from weakref import ref

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from smdist.modelparallel.torch.capture.fake_model import FakeModel

_MAKER = "_smp_made_by"


class ExternalTensors:
    """Watch one unit at a time for tensors from outside it.

    Args:
        fake: The model on fake tensors; it knows the names of weights.
    """

    def __init__(self, fake: FakeModel) -> None:
        self._names, self._made = fake.names, fake.mode.made
        self._unit = ""
        self._own: set[int] = set()
        self.found = ""

    def enter(self, unit: str, module: nn.Module, leaves: Iterable[Any]) -> None:
        """Start a unit, under the name of its call, with the leaves of its arguments."""
        self._unit, self.found = unit, ""
        self._own = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        for part in module.modules():
            for group in (part._parameters, part._buffers, part.__dict__):
                self._own |= {id(value) for value in group.values() if isinstance(value, Tensor)}

    def watch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the arguments of a function that runs in the unit."""
        for tensor in tensors_in((*args, *kwargs.values())):
            if not self.found and id(tensor) not in self._own:
                self.found = self._objection(tensor)

    def mark(self, result: Any) -> None:
        """Mark the result of a function in the unit, or of the unit itself, as made by the unit."""
        for tensor in tensors_in((result,)):
            if isinstance(tensor, FakeTensor) and id(tensor) not in self._names:
                tensor.__dict__[_MAKER] = self._unit
                self._made.append(ref(tensor))

    def _objection(self, tensor: Tensor) -> str:
        name = self._names.get(id(tensor))
        if name is not None:
            return f"uses {name!r}, which is not in it"
        maker = tensor.__dict__.get(_MAKER, self._unit)
        return "" if maker == self._unit else f"uses a tensor of {maker!r} that it was not given"


def tensors_in(items: Iterable[Any]) -> Iterable[Tensor]:
    """Yield the tensors among the items, and in lists and tuples among them."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from tensors_in(item)
