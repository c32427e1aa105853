# SPDX-License-Identifier: Apache-2.0
"""Count of floating-point operations and bytes while operations run, on real or fake tensors.

* Floating-point operations: torch's own formulas for matrix products, convolutions and attention;
  other operations count as 0.
* Bytes: memory that each operation reads and writes. Views count as 0, and a lookup reads the rows
  that it returns, not its whole table.

`seconds` divides both counts by a device's peak speeds. An operation takes as long as its
arithmetic or its memory traffic, whichever is longer. The sum over all operations is shorter than
the real time, but good enough to compare layers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from sagemaker_dist.errors import require
from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.torch.measure.trial import storages

_aten = torch.ops.aten
_DEVICE_QUERY = torch.ops.prim.device.default  # runs thousands of times on fake tensors
_LOOKUPS = {_aten.embedding, _aten.gather, _aten.index_select, _aten.index}
_FREE = {_aten.empty, _aten.empty_like, _aten.new_empty, _aten.empty_strided, _aten._unsafe_view,
         _aten.new_empty_strided}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """Floating-point operations of one operation, and the bytes that it reads and writes."""

    flops: int = 0
    num_bytes: int = 0


class OpCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Mode that counts operations and memory within its `with` block.

    Attributes:
        work: Floating-point operations and bytes of each operation since the last `take`.
        alive: Bytes of the tensors that were made in the block and still exist.
        peak: Largest value of `alive` since the last `take`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: list[OpWork] = []
        self.alive = self.peak = 0
        self._known: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, so that PyTorch does not disable Dynamo around each operation.

        Disabling Dynamo would take most of the time of a count.
        """
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
        if func is _DEVICE_QUERY:
            return result
        work = _work(func, args, kwargs, result)
        if work.flops or work.num_bytes:
            self.work.append(work)
        for tensor in _dense(result):
            self._watch(tensor)
        return result

    def ignore(self, known: set[int]) -> None:
        """Exclude some storages from the counts `alive` and `peak`.

        Args:
            known: Ids of the storages, from `storage_of`.
        """
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

    def take(self) -> tuple[tuple[OpWork, ...], int]:
        """Return `work` and `peak` (the largest number of bytes in use), and reset both."""
        work, peak = tuple(self.work), self.peak
        self.work, self.peak = [], self.alive
        return work, peak


def _work(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> OpWork:
    packet = func.overloadpacket
    formula = flop_registry.get(packet) or _FORMULAS.get(packet)
    flops = int(formula(*args, **kwargs, out_val=result)) if formula else 0
    if packet in _FREE or func.is_view:
        return OpWork(flops=flops)
    read, written = _dense((args, dict(kwargs))), _dense(result)
    if not func._schema.is_mutable and storages(written) <= storages(read):
        return OpWork(flops=flops)  # a view, or the input itself
    if packet in _LOOKUPS:
        read = read[1:] + written
    return OpWork(flops=flops, num_bytes=sum(map(_touched_bytes, read + written)))


def _dense(tree: Any) -> list[Tensor]:
    found = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
    return [tensor for tensor in found if tensor.layout is torch.strided]


def _touched_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; an expanded dimension counts as length 1."""
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


# Formulas for operations that torch has none for
_FORMULAS: dict[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten._grouped_mm: _experts,
}


def seconds(work: Sequence[OpWork], device: Device) -> float:
    """Return the seconds that operations take on a device, one after the other, at peak speed."""
    flops, num_bytes = device.flops_per_second or inf, device.bytes_per_second or inf
    return sum(max(each.flops / flops, each.num_bytes / num_bytes) for each in work)


def check_speed(device: Device) -> None:
    """Check that a device has a speed: operations per second, bytes per second, or both.

    Raises:
        OptionError: The device has no speed, or a speed is 0 or less.
    """
    speeds = {
        "flops_per_second": device.flops_per_second,
        "bytes_per_second": device.bytes_per_second,
    }
    known = {name: speed for name, speed in speeds.items() if speed is not None}
    require(
        bool(known) and all(speed > 0 for speed in known.values()),
        what=f"the speeds of device {device.name!r} are {speeds}",
        why="an estimate needs at least one speed, and each speed has to be above 0",
        hint="Set Device(flops_per_second=..., bytes_per_second=...), or measure on the device",
        about="device",
    )
