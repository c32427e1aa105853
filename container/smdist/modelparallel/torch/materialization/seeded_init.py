# SPDX-License-Identifier: Apache-2.0
"""Seeds for a model's initial values, which do not depend on how the model is split over ranks.

    wte.weight.normal_()      seeded by (seed, "wte.weight", 1: first draw for this tensor)
    torch.randn(4)            seeded by (seed, name of the running module, 1: its first draw)

The generator is seeded anew for each random operation. A rank initialises only the tensors of its
own stages. Other tensors are on the meta device, where operations draw no random numbers.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from smdist.modelparallel.torch.accelerator import accelerator_module


def memory(tensor: Tensor) -> int:
    """Return a number that identifies a tensor's memory, on the meta device too."""
    return int(tensor.untyped_storage()._cdata)


class SeededInit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that seeds each random operation, and counts the elements that are written.

    Args:
        seed: Seed of the whole training run.
        names: Name of each tensor, by the id of the tensor's memory.

    Attributes:
        module: Name of the module whose initialisation runs; set by the caller.
        written: Number of elements that were written to each tensor, by the tensor's name.
    """

    def __init__(self, seed: int, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.module = ""
        self.written: Counter[str] = Counter()
        self._seed, self._names = seed, names
        self._draws: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operation and return its result; seed the generators first if it is random."""
        kwargs = dict(kwargs or {})
        targets = list(_targets(func, args, kwargs))
        names = [self._names.get(memory(target)) for target in targets]
        if torch.Tag.nondeterministic_seeded in func.tags:
            found = next((name for name in names if name), None)
            self._start(found or f"{self.module}:")
        result = func(*args, **kwargs)
        for name, target in zip(names, targets, strict=True):
            if name:
                self.written[name] += target.numel()
        return result

    def _start(self, name: str) -> None:
        self._draws[name] += 1
        text = f"{self._seed}/initial/{name}/{self._draws[name]}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        torch.default_generator.manual_seed(number)
        module = accelerator_module()
        if module is not None:
            module.manual_seed(number)


def _targets(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """Yield the tensors that a call of an operation writes to.

    Args:
        func: Overload of the operation, with its schema.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
    """
    for at, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(each, Tensor):
                yield each
