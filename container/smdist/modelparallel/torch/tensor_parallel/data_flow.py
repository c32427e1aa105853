# SPDX-License-Identifier: Apache-2.0
"""Flow of values between a model's products, read from the autograd graph of one forward pass.

The model runs on fake tensors, which have shapes and no values. From the input of each product, the
graph is followed back to the products whose outputs it is computed from:

    gated MLP: down(act(gate(x)) * up(x))     the sources of `down` are `gate` and `up`

A forward pass that depends on values runs on a copy of the model instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn

from smdist.modelparallel.torch.capture.capture_run import clear_caches
from smdist.modelparallel.torch.capture.fake_model import FakeModel, on_fakes
from smdist.modelparallel.torch.capture.module_snapshot import uncompiled, untouched
from smdist.modelparallel.torch.program.pytree import flatten, unflatten
from smdist.modelparallel.torch.program.tracing_flag import tracing
from smdist.modelparallel.torch.randomness import generators_kept
from smdist.modelparallel.torch.tensor_splits.split_modules import is_product, is_table


@dataclass(frozen=True, slots=True)
class TensorShape:
    """Stand-in for a tensor among the recorded arguments of a call.

    Attributes:
        size: TensorShape of the tensor.
        dtype: Type of its elements.
        has_grad: True if the tensor requires a gradient.
    """

    size: tuple[int, ...]
    dtype: torch.dtype
    has_grad: bool


@dataclass(slots=True, kw_only=True)
class Flow:
    """Flow of values between the products of a model in one forward pass.

    Attributes:
        order: Names of products and embeddings, in the order of their first calls.
        sources: For each product, the names of the products whose outputs its input is computed
            from, in the order of calls.
        tables: For each product, the names of the embeddings from which its input is computed, too.
        unused: For each module, the numbers of the leaves of its output that have a gradient, and
            from which no output of the model is computed.
        calls: Positional and keyword arguments of the first call of each module, by name. Tensors
            are replaced by `TensorShape`.
    """

    order: list[str] = field(default_factory=list)
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unused: dict[str, set[int]] = field(default_factory=dict)
    calls: dict[str, Any] = field(default_factory=dict)


def flow_of(model: nn.Module, arguments: tuple[Any, Any]) -> Flow:
    """Run a model on fake tensors, and return the flow of values between its products.

    The model is unchanged afterwards.

    Args:
        model: The whole model, also on the meta device.
        arguments: Positional and keyword arguments of a call.

    Raises:
        Exception: The forward pass failed.
    """
    with on_fake_arguments(model, arguments) as (args, kwargs):
        watch = _Watch(model)
        with watch.hooked():
            watch.end(model(*args, **kwargs))
        return watch.flow


@contextmanager
def on_fake_arguments(
    model: nn.Module, arguments: tuple[Any, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Make a model run on fake tensors within the block, and return fake arguments for its call.

    All floating parameters require gradients, so that no path is hidden. The model is unchanged
    afterwards.

    Args:
        model: The whole model, also on the meta device.
        arguments: Positional and keyword arguments of a call.
    """
    made: list[ReferenceType[Tensor]] = []
    try:
        leaves, form = flatten(arguments)
        cpu = torch.device("cpu")
        with on_fakes(model, cpu, made) as fake, untouched(), uncompiled():
            args, kwargs = unflatten(form, [_fake(leaf, fake) for leaf in leaves])
            with fake.mode, torch.enable_grad(), tracing(), _trained(model):
                yield args, kwargs
    finally:
        clear_caches(made)


def flow_of_values(model: nn.Module, arguments: tuple[Any, Any]) -> Flow:
    """Run a copy of a model with its values, and return the flow of values between its products.

    The flow has the products that these arguments lead to.

    Args:
        model: The whole model, which has values.
        arguments: Positional and keyword arguments of a call.

    Raises:
        Exception: The forward pass failed.
    """
    copy = deepcopy(model)
    args, kwargs = deepcopy(arguments)
    watch = _Watch(copy)
    with generators_kept(), torch.enable_grad(), _trained(copy), watch.hooked():
        watch.end(copy(*args, **kwargs))
    return watch.flow


def _fake(leaf: Any, fake: FakeModel) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    with fake.mode:
        device = torch.device("cpu") if leaf.is_meta else leaf.device
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=device)


@contextmanager
def _trained(model: nn.Module) -> Iterator[None]:
    """Let all floating parameters require gradients within the block, so that no path is hidden."""
    frozen = [p for p in model.parameters() if p.is_floating_point() and not p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)


class _Watch:
    """Hooks that record the calls of a model's modules.

    Args:
        model: The model, whose tensors are fake.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.flow = Flow()
        self._made: dict[int, str] = {}  # module that made a value, by the id of its graph node
        self._nodes: list[Any] = []  # keeps the ids valid
        self._outputs: list[tuple[str, int, Any]] = []  # outputs besides a module's first

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Record calls within the block."""
        handles: list[Any] = []
        for name, module in self._model.named_modules():
            before = self._before(name)
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            is_layer = is_product(module) or is_table(module)
            after = self._after(name) if is_layer else self._apart(name)
            handles.append(module.register_forward_hook(after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            if name not in self.flow.calls:
                leaves, form = flatten((args, kwargs))
                self.flow.calls[name] = unflatten(form, [_shape(leaf) for leaf in leaves])
            if is_product(module) and args and isinstance(args[0], Tensor):
                self._trace(name, args[0])

        return hook

    def _after(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001  torch's
            if name not in self.flow.order:
                self.flow.order.append(name)
            if isinstance(output, Tensor) and output.grad_fn is not None:
                self._made[id(output.grad_fn)] = name
                self._nodes.append(output.grad_fn)

        return hook

    def _apart(self, name: str) -> Any:
        """Return a hook that makes nodes of their own for the outputs after a module's first."""

        def hook(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ARG001  torch's
            leaves, form = flatten(output)
            before = len(self._outputs)
            for at, leaf in enumerate(leaves[1:], 1):
                if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                    leaves[at] = leaf.view_as(leaf)
                    self._outputs.append((name, at, leaves[at].grad_fn))
            return unflatten(form, leaves) if len(self._outputs) > before else output

        return hook

    def end(self, output: Any) -> None:
        """Find outputs of modules that nobody uses, after the forward pass.

        Args:
            output: Output of the model.
        """
        leaves, _ = flatten(output)
        used = self._back([leaf.grad_fn for leaf in leaves if isinstance(leaf, Tensor)], ())
        by_leaf: dict[tuple[str, int], bool] = {}
        for name, at, node in self._outputs:
            by_leaf[name, at] = by_leaf.get((name, at), False) or id(node) in used
        for (name, at), is_used in by_leaf.items():
            if not is_used:
                self.flow.unused.setdefault(name, set()).add(at)

    def _back(self, nodes: list[Any], ends: Collection[int]) -> set[int]:
        """Return the ids of nodes from which these are computed, no further than some ends."""
        seen: set[int] = set()
        while nodes:
            node = nodes.pop()
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            self._nodes.append(node)
            if id(node) not in ends:
                nodes += [each for each, _ in node.next_functions]
        return seen

    def _trace(self, name: str, tensor: Tensor) -> None:
        """Follow the graph back from the input of a product to the products before it."""
        found = {self._made.get(node) for node in self._back([tensor.grad_fn], self._made)}
        products = [each for each in self.flow.order if each in found]
        tables = [each for each in products if is_table(self._model.get_submodule(each))]
        before = self.flow.tables.get(name, ())
        self.flow.tables[name] = tuple(dict.fromkeys((*before, *tables)))
        known = self.flow.sources.get(name, ())
        both = dict.fromkeys((*known, *(each for each in products if each not in tables)))
        self.flow.sources[name] = tuple(both)


def _shape(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return TensorShape(tuple(leaf.shape), leaf.dtype, leaf.requires_grad)
