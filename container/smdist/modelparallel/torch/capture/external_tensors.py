# SPDX-License-Identifier: Apache-2.0
"""Detection of tensors that a unit uses although they are neither its own nor its arguments.

A unit is a module that is never split between stages. A module can read tensors of other modules:
through a global variable, or through a plain list of modules, which PyTorch does not register. This
works in one process. But if the unit and the other module are on different stages, the unit has
only a copy of the tensor that is never trained, or no tensor at all.

So the arguments of all functions that run inside a unit are checked. No argument may be a weight of
another module, or a tensor that was made outside of the unit and not passed to the unit.
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
    """Detector of tensors that a unit uses and that are neither its own nor its arguments.

    A unit is a module that is never split. The detector checks one unit at a time.

    Args:
        fake: The model on fake tensors, with the names of its weights.

    Attributes:
        found: Text for an error message, "uses ...", that describes the first such tensor in the
            present unit. "" if there is no such tensor.
        culprit: Name of this tensor in the model, or of the call that made the tensor. "" if there
            is no such tensor.
    """

    def __init__(self, fake: FakeModel) -> None:
        self._names, self._made = fake.names, fake.mode.made
        self._unit = ""
        self._own: set[int] = set()
        self.found = self.culprit = ""

    def enter(self, unit: str, module: nn.Module, leaves: Iterable[Any]) -> None:
        """Start the check of one module's call, and empty `found` and `culprit`.

        Args:
            unit: Name of the call.
            module: Module that is called.
            leaves: Tensors and other arguments of the call.
        """
        self._unit, self.found, self.culprit = unit, "", ""
        self._own = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        for part in module.modules():
            for group in (part._parameters, part._buffers, part.__dict__):
                self._own |= {id(value) for value in group.values() if isinstance(value, Tensor)}

    def watch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the arguments of a function that runs inside the checked module.

        The first tensor that the module must not use is described in the attributes `found` and
        `culprit`.
        """
        for tensor in tensors_in((*args, *kwargs.values())):
            if not self.found and id(tensor) not in self._own:
                self.found, self.culprit = self._objection(tensor)

    def mark(self, result: Any) -> None:
        """Register that the checked module has made the tensors in `result`, so it may use them."""
        for tensor in tensors_in((result,)):
            if isinstance(tensor, FakeTensor) and id(tensor) not in self._names:
                tensor.__dict__[_MAKER] = self._unit
                self._made.append(ref(tensor))

    def _objection(self, tensor: Tensor) -> tuple[str, str]:
        name = self._names.get(id(tensor))
        if name is not None:
            return f"uses {name!r}, which is not in it", name
        maker = tensor.__dict__.get(_MAKER, self._unit)
        if maker == self._unit:
            return "", ""
        return f"uses a tensor of {maker!r} that is not one of its arguments", maker


def tensors_in(items: Iterable[Any]) -> Iterable[Tensor]:
    """Yield every tensor in `items`, also inside nested lists and tuples."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from tensors_in(item)
