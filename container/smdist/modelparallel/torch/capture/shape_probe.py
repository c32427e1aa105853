# SPDX-License-Identifier: Apache-2.0
"""Probe of a unit that cannot run on fake tensors: two runs on made-up numbers.

Some modules read the values of tensors: experts that sort tokens, or `if x.sum() > 0`. This is
allowed inside a unit, a module that is recorded as one call. But the shapes of its results must not
depend on the values. So the probe runs the unit on two different inputs and compares the shapes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from smdist.modelparallel.torch.accelerator import random_device_type
from smdist.modelparallel.torch.capture.fake_model import FakeModel, memory
from smdist.modelparallel.torch.capture.module_snapshot import snapshots
from smdist.modelparallel.torch.program.pytree import Form, flatten, unflatten

LARGEST_BYTES = 2**30
STANDS_IN = "_smp_stands_in"  # marks a tensor without values that replaces one with values


class ProbeError(Exception):
    """Error for a module that cannot be recorded as one call.

    The text begins with a verb, such as "fails ...", so that it can follow the module's name.

    Attributes:
        kind: Kind of the error, as `CaptureError.kind`.
    """

    kind = "varying_result"


class FailedError(ProbeError):
    """Error for a module that fails on fake tensors and on tensors with made-up numbers."""

    kind = "failed_in_capture"


class TooLargeError(ProbeError):
    """Error for a module on the meta device that is too large to run with zeros as weights."""

    kind = "needs_values"


class Probe:
    """Runner of modules on made-up numbers, to find the shapes of their results.

    Args:
        fake: The model's fake tensors, with the real tensors that they replace.
        inputs: The model's real inputs, by the id of the fake tensor in place of each input.

    Attributes:
        changed: Ids of the storages of the fake buffers that the last module changed.
    """

    def __init__(self, fake: FakeModel, inputs: Mapping[int, Tensor]) -> None:
        self._fake, self._inputs = fake, inputs
        self._bytes = 0  # size of the weights made up for the present unit
        self.changed: set[int] = set()

    def run(
        self, module: nn.Module, form: Form, leaves: list[Any], error: Exception
    ) -> tuple[Any, list[int]]:
        """Run a module twice on made-up numbers, and return its result on fake tensors.

        Args:
            module: The module.
            form: Nesting of the arguments.
            leaves: The arguments, taken out of nested containers; tensors are fake.
            error: Error that the module raised on fake tensors.

        Returns:
            The module's result with fake tensors, and the positions of the leaves that it changed.

        Raises:
            TooLargeError: Zeros in place of the module's weights would need too much memory.
            FailedError: The module fails on made-up numbers.
            ProbeError: The nesting, a shape or a constant of the result depends on the numbers.
        """
        self._bytes = 0
        with unset_fake_temporarily(), self._real(module), _forked():
            try:
                first = _Trial(self._made_up(leaves, seed=0), form, module)
                with _unseen():  # the recorder received the functions of the first trial
                    second = _Trial(self._made_up(leaves, seed=1), form, module)
            except ProbeError:
                raise
            except Exception as failed:
                raise FailedError(
                    f"fails both on tensors without values ({_says(error)}) and on real tensors "
                    f"with made-up values ({_says(failed)})"
                ) from failed
        first.compare(second)
        with self._fake.mode:
            return first.as_fakes(leaves), first.changed

    @contextmanager
    def _real(self, module: nn.Module) -> Iterator[None]:
        saved = snapshots(module.modules())
        buffers: list[tuple[Tensor | None, Tensor, Tensor]] = []
        try:
            for part in module.modules():
                fakes = dict(part._buffers)
                for group in (part._parameters, part._buffers, part.__dict__):
                    group.update(self._reals(group))  # type: ignore[arg-type]
                buffers += [
                    (fakes[key], buffer, buffer.detach().clone())
                    for key, buffer in part._buffers.items()
                    if buffer is not None
                ]
            yield
        finally:
            for each in saved:
                each.restore()
            self.changed = {
                memory(fake)
                for fake, buffer, before in buffers
                if fake is not None and not torch.equal(buffer, before)
            }
            with torch.no_grad():
                for _, buffer, before in buffers:
                    buffer.copy_(before)

    def _reals(self, group: Mapping[str, Any]) -> dict[str, Tensor]:
        fakes = {key: value for key, value in group.items() if id(value) in self._fake.names}
        return {key: self._weight(fake) for key, fake in fakes.items()}

    def _weight(self, fake: Tensor) -> Tensor:
        """Return the real weight that a fake one replaces; zeros for a weight on the meta device.

        The weight is on the device that the fake one has.

        Raises:
            TooLargeError: The unit's weights on the meta device are too large to be replaced by
                zeros.
        """
        real = self._fake.reals[self._fake.names[id(fake)]]
        if not real.is_meta:
            return real if real.device == fake.device else _moved(real, fake.device)
        self._bytes += real.numel() * real.element_size()
        is_large = self._bytes > LARGEST_BYTES
        if is_large and not hasattr(real, STANDS_IN):
            raise TooLargeError(f"over {LARGEST_BYTES:,} bytes")
        made = _zeros(real, fake.device, is_lazy=is_large)
        if isinstance(real, nn.Parameter):
            return nn.Parameter(made, requires_grad=real.requires_grad)
        return made

    def _made_up(self, leaves: list[Any], seed: int) -> list[Any]:
        torch.manual_seed(seed)
        with _unseen():
            return [self._number(leaf, seed) for leaf in leaves]

    def _number(self, leaf: Any, seed: int) -> Any:
        if not isinstance(leaf, FakeTensor):
            return leaf
        known = self._inputs.get(id(leaf))
        if known is not None and not known.is_meta:
            return known.detach().clone().requires_grad_(known.requires_grad)
        if id(leaf) in self._fake.names:
            return self._weight(leaf)
        made = torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device)
        if not leaf.dtype.is_floating_point:
            return made.logical_not() if leaf.dtype is torch.bool else made
        made = torch.randn_like(made) if seed == 0 else made
        return made.requires_grad_().clone() if leaf.requires_grad else made


class _Trial:
    """Run of a unit on made-up numbers, with its results and the arguments that it changed."""

    def __init__(self, leaves: list[Any], form: Form, module: nn.Module) -> None:
        self.leaves = leaves
        before = [_version(leaf) for leaf in leaves]
        args, kwargs = unflatten(form, leaves)
        self.results, self.form = flatten(module(*args, **kwargs))
        pairs = enumerate(zip(leaves, before, strict=True))
        self.changed = [at for at, (leaf, version) in pairs if _version(leaf) != version]

    def compare(self, other: _Trial) -> None:
        if [_shape(r) for r in self.results] != [_shape(r) for r in other.results]:
            raise ProbeError("returns a result whose shapes or constants depend on the data")
        if self.form != other.form:
            raise ProbeError("returns a result whose nesting depends on the data")

    def as_fakes(self, fakes: list[Any]) -> Any:
        return unflatten(self.form, [self._fake(result, fakes) for result in self.results])

    def _fake(self, result: Any, fakes: list[Any]) -> Any:
        if not isinstance(result, Tensor):
            return result
        for leaf, fake in zip(self.leaves, fakes, strict=True):
            if leaf is result:
                return fake
            if isinstance(leaf, Tensor) and memory(leaf) == memory(result):
                return fake.as_strided(result.shape, result.stride(), result.storage_offset())
        made = torch.empty_strided(
            result.shape, result.stride(), dtype=result.dtype, device=result.device
        )
        return made.requires_grad_().clone() if result.requires_grad else made


def _moved(real: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a parameter or another tensor on a device."""
    made = real.detach().to(device)
    if isinstance(real, nn.Parameter):
        return nn.Parameter(made, requires_grad=real.requires_grad)
    return made


def _zeros(like: Tensor, device: torch.device, *, is_lazy: bool) -> Tensor:
    """Return zeros of the shape and type of `like` on a device.

    Args:
        like: Tensor whose shape and type are used.
        device: Device of the zeros.
        is_lazy: True to allocate each page of CPU memory when it is first written.
    """
    if not is_lazy or device.type != "cpu":
        return torch.zeros(like.shape, dtype=like.dtype, device=device)
    size = max(1, like.numel()) * like.element_size()
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype, count=like.numel()).view(like.shape)


def _unseen() -> AbstractContextManager[None]:
    """Return a context for a `with` block in which the recorder ignores PyTorch's functions."""
    unseen: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return unseen


@contextmanager
def _forked() -> Iterator[None]:
    with torch.random.fork_rng(device_type=random_device_type()):
        yield


def _version(leaf: Any) -> int:
    return leaf._version if isinstance(leaf, Tensor) and not leaf.is_inference() else 0


def _shape(result: Any) -> Any:
    return (tuple(result.shape), result.dtype) if isinstance(result, Tensor) else result


def _says(error: Exception) -> str:
    return (
        f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160].rstrip('.')}"
    )
