# SPDX-License-Identifier: Apache-2.0
"""All-reduces at the borders of split regions, found in one run on tensors without values.

The output of a region is summed over ranks in the forward pass, the gradient of its input in the
backward pass. Modules of a region that share an input share one message. An all-gather of n bytes
takes as long as an all-reduce of n / 2 bytes, and is counted as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from smdist.modelparallel.core.layout.from_graph import BorderMessages
from smdist.modelparallel.torch.program.pytree import flatten
from smdist.modelparallel.torch.tensor_parallel.data_flow import on_fake_arguments
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import TensorPlan
from smdist.modelparallel.torch.tensor_splits import Role

_ENTERED: Final = frozenset({Role.COLUMN, Role.JOINED, Role.BORDER, Role.ATTENTION, Role.EXPERTS})
_SUMMED: Final = frozenset({Role.ROW, Role.INNER, Role.VOCABULARY, Role.ATTENTION, Role.EXPERTS})
_GATHERED: Final = frozenset({Role.JOINED})


def border_messages(
    model: nn.Module, plan: TensorPlan, arguments: tuple[Any, Any], samples: int
) -> Mapping[str, BorderMessages]:
    """Return the all-reduces of each split module, by its name.

    Args:
        model: The whole model, also on the meta device.
        plan: Plan of tensor parallelism for this model.
        arguments: Positional and keyword arguments of a call.
        samples: Samples of these arguments.

    Raises:
        Exception: The forward pass failed.
    """
    watch = _BorderWatch(plan, samples)
    with on_fake_arguments(model, arguments) as (args, kwargs), watch.hooked(model):
        model(*args, **kwargs)
    return {
        name: BorderMessages(
            forward=tuple(watch.forward[name]), backward=tuple(watch.backward[name])
        )
        for name in {**watch.forward, **watch.backward}
    }


class _BorderWatch:
    """Record of the values that cross the borders of split regions.

    Attributes:
        forward: Bytes for each sample of the all-reduces in the forward pass, by module.
        backward: The same for the backward pass.

    Args:
        plan: Plan of tensor parallelism.
        samples: Samples of the recorded call.
    """

    def __init__(self, plan: TensorPlan, samples: int) -> None:
        self.forward: dict[str, list[float]] = defaultdict(list)
        self.backward: dict[str, list[float]] = defaultdict(list)
        self._plan, self._samples = plan, samples
        self._entered: dict[int, list[Tensor]] = defaultdict(list)  # by the region's number

    @contextmanager
    def hooked(self, model: nn.Module) -> Iterator[None]:
        """Record the calls of split modules within the block."""
        handles = []
        for number, region in enumerate(self._plan.regions):
            is_inside = any(each.role is Role.BORDER for each in region.modules)
            roles = {each.name: each.role for each in region.modules}
            for name, role in roles.items():
                enters = role in _ENTERED and not (is_inside and role is not Role.BORDER)
                hook = self._hook(name, role, number, enters=enters)
                module = model.get_submodule(name)
                handles.append(module.register_forward_hook(hook, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str, role: Role, region: int, *, enters: bool) -> Any:
        def record(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            given, made = _first((args, kwargs)), _first(output)
            if enters and given is not None and given.requires_grad:
                before = self._entered[region]
                if not any(each is given for each in before):
                    before.append(given)
                    self.backward[name].append(given.nbytes / self._samples)
            if made is None:
                return
            if role in _SUMMED:
                self.forward[name].append(made.nbytes / self._samples)
            elif role in _GATHERED:
                self.forward[name].append(made.nbytes / 2 / self._samples)

        return record


def _first(tree: Any) -> Tensor | None:
    """Return the first tensor of floating-point numbers in a tree; None without one."""
    leaves, _ = flatten(tree)
    found = (each for each in leaves if isinstance(each, torch.Tensor))
    return next((each for each in found if each.is_floating_point()), None)
