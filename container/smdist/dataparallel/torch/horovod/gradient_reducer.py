# SPDX-License-Identifier: Apache-2.0
"""Reduction of gradients in buckets, which begins during the backward pass.

Buckets are started in the same order on all ranks, whatever the order in which gradients become
ready: each begins when its gradients are there and the bucket before it has begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from threading import RLock
from typing import Any, Final

import torch
from torch.utils.weak import WeakIdKeyDictionary

from smdist.dataparallel.bucket_sizes import bucket_sizes
from smdist.dataparallel.torch.horovod.allreduce_calls import Scaling, start
from smdist.dataparallel.torch.horovod.handles import synchronize
from smdist.dataparallel.torch.horovod.hvd_errors import GradientRaceError
from smdist.dataparallel.torch.horovod.sparse_calls import sparse_allreduce_async

# Hook of each parameter. A second optimizer of a parameter replaces it; the first one then reduces
# the gradient in its step().
_hooks: Final = WeakIdKeyDictionary()


@dataclass(eq=False)
class _Bucket:
    """Parameters whose gradients travel together.

    Attributes:
        params: The parameters.
        missing: Those whose gradients are not ready, as id(parameter).
        dense: (handle, compression contexts, parameters) of the operation; None before it begins.
        sparse: (function that waits for the result, parameter) of sparse gradients.
    """

    params: list[torch.Tensor]
    missing: set[int] = field(default_factory=set)
    dense: tuple[int, list[Any], list[torch.Tensor]] | None = None
    sparse: list[tuple[Callable[[], torch.Tensor], torch.Tensor]] = field(default_factory=list)

    def reset(self) -> None:
        """Prepare the bucket for the next step."""
        self.missing = {id(each) for each in self.params}
        self.dense, self.sparse = None, []


class GradientReducer:
    """Hooks of parameters that reduce their gradients.

    Args:
        params: All parameters, in the order of the model.
        groups: Lists of parameters that travel together, each as one bucket.
        scaling: The reduce operation and its factors.
        compression: Compression for the way.
        passes: Backward passes before gradients are reduced.
        densify: True converts sparse gradients to dense ones for the way.
        bucket_bytes: Largest size of the buckets of parameters that are in no group; the first
            ones are smaller, see bucket_sizes.py.
        names: Names of parameters in timelines, by id(parameter); others have a number.
    """

    def __init__(
        self,
        params: Sequence[torch.Tensor],
        groups: Sequence[Sequence[torch.Tensor]],
        *,
        scaling: Scaling,
        compression: Any,
        passes: int,
        densify: bool,
        bucket_bytes: int,
        names: Mapping[int, str],
    ) -> None:
        self._scaling, self._compression = scaling, compression
        self._passes, self._densify, self._bytes = passes, densify, bucket_bytes
        self._lock = RLock()  # gradients of several GPUs become ready in several threads
        self._is_single = scaling.process_set.size() == 1
        self._left: dict[int, int] = {}  # backward passes that are left, by id(parameter)
        self._buckets: list[_Bucket] = []
        self._place: dict[int, _Bucket] = {}
        self._next = 0  # position of the first bucket that has not begun
        self._grouped = [list(group) for group in groups]
        self._names = dict(names)
        self.adopt(params)

    def adopt(self, params: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Add hooks to parameters that need gradients and have no hook; return these."""
        new = [each for each in params if each.requires_grad and id(each) not in self._left]
        if self._is_single:
            return []
        ids = {id(each) for each in new}
        for each in new:
            self._names.setdefault(id(each), f"noname.{len(self._names)}")
        in_groups = {id(each) for group in self._grouped for each in group}
        buckets = [[each for each in group if id(each) in ids] for group in self._grouped]
        buckets += self._by_size([each for each in reversed(new) if id(each) not in in_groups])
        for members in filter(None, buckets):
            bucket = _Bucket(members)
            bucket.reset()
            self._buckets.append(bucket)
            for each in members:
                self._left[id(each)] = self._passes
                self._place[id(each)] = bucket
                if each in _hooks:
                    _hooks[each].remove()
                hook = each.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]
                _hooks[each] = hook
        return new

    def set_passes(self, passes: int) -> None:
        """Set the number of backward passes before gradients are reduced."""
        self._passes = passes
        self._left = dict.fromkeys(self._left, passes)

    @property
    def is_running(self) -> bool:
        """True from the first gradient of a step until synchronize()."""
        return any(each != self._passes for each in self._left.values())

    def synchronize(self) -> None:
        """Reduce the gradients that are not reduced yet, and wait for all of them.

        A parameter without a gradient takes part with zeros, since other ranks may have one.
        """
        with self._lock:
            self._launch(len(self._buckets))
            try:
                for bucket in self._buckets:
                    self._finish(bucket)
            finally:
                self.reset()

    def reset(self) -> None:
        """Begin a new step; reductions that have begun are neither awaited nor used."""
        with self._lock:
            self._next = 0
            self.set_passes(self._passes)
            for bucket in self._buckets:
                bucket.reset()

    def _by_size(self, params: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        buckets: list[list[torch.Tensor]] = []
        newest: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        left: dict[tuple[torch.dtype, torch.device], int] = {}  # bytes that the newest may take
        sizes = defaultdict[tuple[torch.dtype, torch.device], Iterator[int]](self._sizes)
        for each in params:
            kind = each.dtype, each.device
            if left.get(kind, 0) <= 0:
                newest[kind], left[kind] = [], next(sizes[kind])
                buckets.append(newest[kind])
            newest[kind].append(each)
            left[kind] -= each.numel() * each.element_size()
        return buckets

    def _sizes(self) -> Iterator[int]:
        return chain(bucket_sizes(self._bytes), repeat(self._bytes))

    def _take(self, param: torch.Tensor) -> None:
        """Note that a gradient is ready; torch calls this after each backward pass."""
        with self._lock:
            if self._left[id(param)] <= 0:
                raise GradientRaceError(
                    f"a gradient was computed in more than {self._passes} backward passes",
                    "it is already being reduced",
                    "Raise backward_passes_per_step, or call step() or synchronize() before",
                    about="backward_passes_per_step",
                )
            self._left[id(param)] -= 1
            if self._left[id(param)]:
                return
            bucket = self._place[id(param)]
            bucket.missing.discard(id(param))
            ready = self._next
            while ready < len(self._buckets) and not self._buckets[ready].missing:
                ready += 1
            self._launch(ready)

    def _launch(self, end: int) -> None:
        while self._next < end:
            self._begin(self._buckets[self._next])
            self._next += 1

    def _begin(self, bucket: _Bucket) -> None:
        dense, sent, contexts = [], [], []
        for param in bucket.params:
            gradient = self._gradient(param)
            if gradient.is_sparse:
                scaling = self._scaling
                wait = sparse_allreduce_async(
                    gradient * (scaling.before * scaling.after),
                    None,
                    scaling.reduction,
                    scaling.process_set,
                )
                bucket.sparse.append((wait, param))
                continue
            small, context = self._compression.compress(gradient)
            dense.append(param)
            sent.append(small)
            contexts.append(context)
        if dense:
            handle = start(sent, self._scaling, list, shown=self._shown(dense))
            bucket.dense = handle, contexts, dense

    def _shown(self, params: Sequence[torch.Tensor]) -> str:
        """Return the name in timelines of gradients that travel together: "b..a (2)"."""
        first, last = (self._names[id(each)] for each in (params[0], params[-1]))
        return first if len(params) == 1 else f"{first}..{last} ({len(params)})"

    def _gradient(self, param: torch.Tensor) -> torch.Tensor:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        is_dense_on_the_way = param.grad.is_sparse and self._densify
        return param.grad.to_dense() if is_dense_on_the_way else param.grad

    def _finish(self, bucket: _Bucket) -> None:
        for wait, param in bucket.sparse:
            param.grad = wait()
        if bucket.dense is None:
            return
        handle, contexts, params = bucket.dense
        results = synchronize(handle)
        with torch.no_grad():
            for param, result, context in zip(params, results, contexts, strict=True):
                whole = self._compression.decompress(result, context)
                assert param.grad is not None
                if param.grad.is_sparse:  # again after the way, for optimizers such as SparseAdam
                    param.grad = whole.to_sparse(param.grad.sparse_dim())
                else:
                    _replace(param.grad, whole)


def _replace(gradient: torch.Tensor, result: torch.Tensor) -> None:
    """Give the gradient the memory of the result, as Horovod does, which copies nothing.

    The result is copied if the gradient has another layout or is a view of a larger tensor, since
    that tensor has to change with it.
    """
    own_bytes = gradient.numel() * gradient.element_size()
    is_whole = gradient.untyped_storage().nbytes() == own_bytes
    if is_whole and gradient.dtype == result.dtype and gradient.stride() == result.stride():
        gradient.set_(result)  # type: ignore[call-overload]
    else:
        gradient.copy_(result)
