# SPDX-License-Identifier: Apache-2.0
"""Detection of tensors that a unit uses although they are neither its own nor its arguments.

A module can read other tensors through Python: through modules in a plain list, which PyTorch does
not register, or through a global variable. This works in one process. If the unit is on another
stage, it would have a copy that is never trained, or no tensor at all. So the arguments of
functions inside a unit are checked: they must not be weights of other modules, or tensors that were
made outside the unit.
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
        found: Description of the first such tensor in the present unit, for an error message:
            "uses ..."; "" if none was found.
    """

    def __init__(self, fake: FakeModel) -> None:
        self._names, self._made = fake.names, fake.mode.made
        self._unit = ""
        self._own: set[int] = set()
        self.found = ""

    def enter(self, unit: str, module: nn.Module, leaves: Iterable[Any]) -> None:
        """Begin to check a unit; forget what was found in the unit before.

        Args:
            unit: Name of the unit's call.
            module: The unit.
            leaves: Tensors and other arguments of the call.
        """
        self._unit, self.found = unit, ""
        self._own = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        for part in module.modules():
            for group in (part._parameters, part._buffers, part.__dict__):
                self._own |= {id(value) for value in group.values() if isinstance(value, Tensor)}

    def watch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the arguments of a function that runs inside the unit.

        The first tensor that the unit must not use is described in `found`.
        """
        for tensor in tensors_in((*args, *kwargs.values())):
            if not self.found and id(tensor) not in self._own:
                self.found = self._objection(tensor)

    def mark(self, result: Any) -> None:
        """Register the tensors of a result as made inside the present unit."""
        for tensor in tensors_in((result,)):
            if isinstance(tensor, FakeTensor) and id(tensor) not in self._names:
                tensor.__dict__[_MAKER] = self._unit
                self._made.append(ref(tensor))

    def _objection(self, tensor: Tensor) -> str:
        name = self._names.get(id(tensor))
        if name is not None:
            return f"uses {name!r}, which is not in it"
        maker = tensor.__dict__.get(_MAKER, self._unit)
        is_own = maker == self._unit
        return "" if is_own else f"uses a tensor of {maker!r} that is not one of its arguments"


def tensors_in(items: Iterable[Any]) -> Iterable[Tensor]:
    """Yield every tensor in `items`, also inside nested lists and tuples."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from tensors_in(item)
