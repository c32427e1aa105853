# SPDX-License-Identifier: Apache-2.0
"""Writes down what operations compute and move as they run: on real tensors and fake ones alike.

* Operations: torch's own formulas of floating-point operations, for matrix products,
  convolutions and attention; nothing else is counted.
* Bytes: what each operation reads and writes in memory. Views are free, and a lookup reads the
  rows that it returns, not its table.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from smdist.modelparallel.torch.measure.trial import storages

_aten = torch.ops.aten
_ASKS = torch.ops.prim.device.default  # of fake tensors, thousands of times
_LOOKUPS = {_aten.embedding, _aten.gather, _aten.index_select, _aten.index}
_FREE = {_aten.empty, _aten.empty_like, _aten.new_empty, _aten.empty_strided, _aten._unsafe_view,
         _aten.new_empty_strided}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What an operation, or a sequence of them, asks of a device."""

    flops: int = 0
    num_bytes: int = 0


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down operations as they run, and how much memory is alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: list[Work] = []
        self.alive = self.peak = 0
        self._known: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: wrapping every operation against torch.compile would take most of the time."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is _ASKS:
            return result
        work = _work(func, args, kwargs, result)
        if work.flops or work.num_bytes:
            self.work.append(work)
        for tensor in _dense(result):
            self._watch(tensor)
        return result

    def know(self, known: set[int]) -> None:
        """Storages that were there before: they are not counted."""
        self._known |= known

    def _watch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.alive += num_bytes
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, key, num_bytes)

    def _forget(self, key: int, num_bytes: int) -> None:
        self._known.discard(key)
        self.alive -= num_bytes

    def turn_page(self) -> tuple[tuple[Work, ...], int]:
        """What was done since the last page, and the most that was alive meanwhile."""
        page, peak = tuple(self.work), self.peak
        self.work, self.peak = [], self.alive
        return page, peak


def _work(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Work:
    packet = func.overloadpacket
    formula = flop_registry.get(packet) or _FORMULAS.get(packet)
    flops = int(formula(*args, **kwargs, out_val=result)) if formula else 0
    if packet in _FREE or func.is_view:
        return Work(flops=flops)
    read, written = _dense((args, dict(kwargs))), _dense(result)
    if not func._schema.is_mutable and storages(written) <= storages(read):
        return Work(flops=flops)  # a view, or the input itself
    if packet in _LOOKUPS:
        read = read[1:] + written
    return Work(flops=flops, num_bytes=sum(map(_touched_bytes, read + written)))


def _dense(tree: Any) -> list[Tensor]:
    found = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return [tensor for tensor in found if tensor.layout is torch.strided]


def _touched_bytes(tensor: Tensor) -> int:
    """What an operation goes through: expanded dimensions are one row that is read again."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return prod(size for size, stride in pairs if stride) * tensor.element_size()


def _attention(*args: Any, out_val: Any, **_: Any) -> int:
    formula: Any = flop_registry[_aten._scaled_dot_product_flash_attention]
    return int(formula(*args[:3], out_val=out_val))


def _attention_backward(*args: Any, out_val: Any, **_: Any) -> int:
    formula: Any = flop_registry[_aten._scaled_dot_product_flash_attention_backward]
    return int(formula(*args[:4], out_val=out_val))


def _experts(rows: Tensor, weights: Tensor, *_: Any, **__: Any) -> int:
    return 2 * rows.shape[-2] * rows.shape[-1] * weights.shape[-1]


# Formulas that torch lacks.
_FORMULAS: dict[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten._grouped_mm: _experts,
}
