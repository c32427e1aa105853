# SPDX-License-Identifier: Apache-2.0
"""Temporary replacement of a model's tensors by fake tensors, which have a shape and no values.

    module._parameters["weight"]   real 16 GB  ->  fake 0 bytes  ->  the same real one again

Tensors that share memory also share it as fake tensors, so a change in place is visible in all of
them. If the model is on the meta device, its fake tensors are on the device of the inputs. So are
those of a model on the CPU if the inputs are on an accelerator: its stages are moved there when the
model is split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from sagemaker_dist.errors import KeyPath
from smdist.modelparallel.torch.accelerator import is_accelerator, is_off_accelerator
from smdist.modelparallel.torch.capture.capture_errors import CaptureError
from smdist.modelparallel.torch.capture.module_snapshot import snapshots


@dataclass(frozen=True, slots=True)
class Effects:
    """Side effects of tensor operations: memory that was changed in place, and random draws.

    Only operations since the last `clear()` are included.

    Attributes:
        written: Ids of the storages that were changed in place; the function `memory` returns such
            an id for a tensor.
        draws: Names of operations that may have drawn a random number, in order.
    """

    written: set[int] = field(default_factory=set)
    draws: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Remove all recorded side effects, before the next call."""
        self.written.clear()
        self.draws.clear()


class WatchedFakes(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Fake tensor mode that records changes in place and random operations, in its `effects`.

    Args:
        made: List for weak references to the fake tensors of a run. If one of them still exists
            after the run, user code has stored it, perhaps in a function cache.
    """

    def __init__(self, made: list[ReferenceType[Tensor]]) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.made = made
        self.effects = Effects()
        self._facts: dict[Any, tuple[bool, tuple[int, ...], tuple[str, ...]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record the side effects of the operation `func`, then run it on fake tensors."""
        kwargs = kwargs or {}
        facts = self._facts.get(func) or self._find(func)
        is_random, positions, names = facts
        if is_random:
            self.effects.draws.append(str(func))
        if positions or names:
            targets = [args[at] for at in positions if at < len(args)]
            targets += [kwargs[name] for name in names if name in kwargs]
            self.effects.written.update(memory(t) for t in _tensors(targets))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _find(self, func: Any) -> tuple[bool, tuple[int, ...], tuple[str, ...]]:
        arguments = func._schema.arguments
        written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
        facts = (
            torch.Tag.nondeterministic_seeded in func.tags,
            tuple(at for at, is_written in enumerate(written) if is_written),
            tuple(a.name for a, is_written in zip(arguments, written, strict=True) if is_written),
        )
        self._facts[func] = facts
        return facts


def memory(tensor: Tensor) -> int:
    """Return an id of a tensor's memory (its storage); tensors that share memory share the id."""
    return int(tensor.untyped_storage()._cdata)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """Fake tensors of a model: its parameters, buffers and other tensor attributes.

    A tensor that has several names in the model is listed under its first name only: the first one
    in the order of `model.named_modules()`.

    Attributes:
        names: First name of each tensor, by the id of its fake tensor.
        reals: The real tensors, by first name.
        fakes: The fake tensors, by first name. They are stored here so that their ids stay valid.
        mode: Fake tensor mode in which the fake tensors were made.
    """

    names: Mapping[int, str]
    reals: Mapping[str, Tensor]
    fakes: Mapping[str, Tensor]
    mode: WatchedFakes


@contextmanager
def on_fakes(
    model: nn.Module, device: torch.device, made: list[ReferenceType[Tensor]]
) -> Iterator[FakeModel]:
    """Replace all tensors of a model by fake ones within the block; then restore the model.

    The `with` statement provides the fake tensors and their names.

    Args:
        model: A model on any device.
        device: Device of the fake tensors that replace tensors on the meta device. If it is an
            accelerator and the model is on the CPU, also of those that replace its parameters and
            buffers.
        made: List to which weak references to fake tensors are added within the block.

    Raises:
        CaptureError: A parameter or buffer is of a class with its own behaviour, such as DTensor.
    """
    mode = WatchedFakes(made)
    saved = snapshots(model.modules())
    maker = _Maker(mode, device, moves=is_accelerator(device) and is_off_accelerator(model))
    try:
        yield maker.replace(model)
    finally:
        for each in saved:
            each.restore()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """Tensor of a module: the dict that holds it, its key there, and its name in the model."""

    group: dict[str, Any]
    key: str
    name: str
    tensor: Tensor
    is_attribute: bool  # neither a parameter nor a buffer


def _held(model: nn.Module) -> Iterator[_Held]:
    """Yield each tensor of a model under each of its names."""
    for prefix, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue  # tensors of scripted modules live in C++, where fakes and real ones mix
        for group in (module._parameters, module._buffers, module.__dict__):
            for key, value in group.items():
                if isinstance(value, Tensor):
                    yield _Held(
                        group=group,
                        key=key,
                        name=f"{prefix}.{key}" if prefix else key,
                        tensor=value,
                        is_attribute=group is module.__dict__,
                    )


class _Maker:
    def __init__(self, mode: WatchedFakes, device: torch.device, *, moves: bool) -> None:
        self._mode, self._device, self._moves = mode, device, moves
        self._made: dict[int, tuple[Tensor, Tensor, str]] = {}
        self._bases: dict[int, Tensor] = {}
        self._sharers: Counter[int] = Counter()  # number of the model's tensors in each memory

    def replace(self, model: nn.Module) -> FakeModel:
        held = list(_held(model))
        for each in held:
            check_plain(each.tensor, repr(each.name), about=each.name)
        different = {id(each.tensor): each.tensor for each in held}
        self._sharers.update(memory(t) for t in different.values() if t.layout is torch.strided)
        for each in held:
            moves = self._moves and not each.is_attribute
            each.group[each.key] = self._fake(each.tensor, each.name, moves=moves)
        made = self._made.values()
        return FakeModel(
            names={id(fake): name for fake, _, name in made},
            reals={name: real for _, real, name in made},
            fakes={name: fake for fake, _, name in made},
            mode=self._mode,
        )

    def _fake(self, real: Tensor, name: str, *, moves: bool) -> Tensor:
        known = self._made.get(id(real))
        if known is None:
            known = (self._make(real, moves=moves), real, name)
            self._made[id(real)] = known
        return known[0]

    def _make(self, real: Tensor, *, moves: bool) -> Tensor:
        device = self._device if moves or real.is_meta else real.device
        if self._has_own_memory(real):
            return self._direct(real, device)
        fake = self._bare(real, device)
        if isinstance(real, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=real.requires_grad)
        elif real.requires_grad:
            fake = fake.detach().requires_grad_(True)
        return fake

    def _has_own_memory(self, real: Tensor) -> bool:
        """Return whether a tensor fills memory that no other tensor of the model has."""
        if real.layout is not torch.strided or self._sharers[memory(real)] > 1:
            return False
        return real.is_contiguous() and real.nbytes == real.untyped_storage().nbytes()

    def _direct(self, real: Tensor, device: torch.device) -> Tensor:
        """Return a fake tensor without an operation of the mode, which would take half a ms."""
        bare = torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device="meta")
        fake = FakeTensor(self._mode, bare, device)
        fake.requires_grad_(real.requires_grad)
        if isinstance(real, nn.Parameter):
            fake._is_param = True  # nn.Parameter() sets it, too
        return fake

    def _bare(self, real: Tensor, device: torch.device) -> Tensor:
        if real.layout is not torch.strided:
            return self._mode.from_tensor(real.detach())
        with self._mode, torch.no_grad():
            base = self._base(real, device)
            view = base.view(real.dtype) if base.dtype != real.dtype else base
            return view.as_strided(real.shape, real.stride(), real.storage_offset())

    def _base(self, real: Tensor, device: torch.device) -> Tensor:
        storage = memory(real)
        if storage not in self._bases:
            size = real.untyped_storage().nbytes() // real.element_size()
            self._bases[storage] = torch.empty(size, dtype=real.dtype, device=device)
        return self._bases[storage]


def check_plain(real: Tensor, title: str, *, about: str | KeyPath = ()) -> None:
    """Check that a tensor can be replaced by a fake one.

    Args:
        real: A tensor of the model or of its inputs.
        title: Name of the tensor for an error's text, such as "an input of the model".
        about: Name of the tensor; () if it has none.

    Raises:
        CaptureError: The tensor is uninitialized, or of a subclass such as DTensor.
    """
    plain: tuple[Callable[..., Any], ...] = (Tensor, nn.Parameter, nn.Buffer)
    if type(real) in plain:
        return
    if isinstance(real, (nn.UninitializedParameter, nn.UninitializedBuffer)):
        raise CaptureError(
            f"{title} has no shape yet",
            "a lazy module determines its shapes in its first forward pass",
            "Run the model once on an example first",
            about=about,
            kind="no_shape",
        )
    raise CaptureError(
        f"{title} is a {type(real).__name__}",
        "a tensor of a subclass with its own operations cannot be replaced by a fake tensor",
        "Pass the model before it is sharded or quantised",
        about=about,
        kind="tensor_subclass",
    )


def _tensors(items: list[Any]) -> Iterator[Tensor]:
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _tensors(list(item))
