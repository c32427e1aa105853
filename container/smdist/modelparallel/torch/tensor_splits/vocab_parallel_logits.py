# SPDX-License-Identifier: Apache-2.0
"""Logits of a vocabulary that is split over ranks, which a loss uses without gathering them.

    head ──▶ VocabParallelLogits ──▶ view, slice, scale ──▶ cross_entropy    one small all-gather
                                 └─▶ any other function                      the logits are gathered

A head returns them within a block of `smp.loss_parallel`. The whole logits of a batch are often the
largest tensor of a training; this way each rank holds its part of the vocabulary alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from math import prod
from types import EllipsisType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from smdist.modelparallel.torch.tensor_splits.part_tensor import PartTensor
from smdist.modelparallel.torch.tensor_splits.peers import Peers, is_silent
from smdist.modelparallel.torch.tensor_splits.region_borders import joined
from smdist.modelparallel.torch.tensor_splits.vocab_parallel_loss import (
    vocab_parallel_cross_entropy,
)

_open: list[None] = []  # one element for each open `loss_parallel` block


@contextmanager
def loss_parallel() -> Iterator[None]:
    """Compute losses on the ranks' own parts of the logits, within the block.

    The block has no effect on a model whose head is whole. Within it, every rank has to do the same
    with the model's output: functions other than `cross_entropy` gather the logits of all ranks,
    and wait for them.

    Example:
        >>> with smp.loss_parallel():
        ...     logits = model(ids)
        ...     loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    Named like torch's `torch.distributed.tensor.parallel.loss_parallel`; the method is that of
    Megatron-LM (Shoeybi et al., 2019, arXiv 1909.08053, section 3).
    """
    _open.append(None)
    try:
        yield
    finally:
        _open.pop()


@contextmanager
def gathered_logits() -> Iterator[None]:
    """Gather logits within the block, also if it is inside a block of `loss_parallel`."""
    outer, _open[:] = _open[:], []
    try:
        yield
    finally:
        _open[:] = outer


def logits_of(part: Tensor, peers: Peers) -> Tensor:
    """Return the output of a head: whole, or, within a block of `loss_parallel`, in parts.

    Args:
        part: This rank's part of the logits; the last dimension is that of the vocabulary.
        peers: Ranks over which the vocabulary is split.
    """
    is_traced = is_silent(part) or torch.compiler.is_compiling()
    return joined(part, peers) if is_traced or not _open else VocabParallelLogits(part, peers)


def whole_logits(value: Any) -> Any:
    """Return a nested value with whole tensors in place of logits in parts; all ranks call this."""
    return VocabParallelLogits.wholes(value)


class VocabParallelLogits(PartTensor):
    """Tensor of the shape of whole logits, of which this rank has the part of its vocabulary.

    Args:
        part: This rank's part; the last dimension is that of the vocabulary.
        peers: Ranks over which the vocabulary is split, in parts of equal size.

    Attributes:
        part: This rank's part, in the autograd graph.
    """

    part: Tensor
    _peers: Peers
    _whole: Tensor | None

    @staticmethod
    def __new__(cls: Any, part: Tensor, peers: Peers) -> VocabParallelLogits:  # noqa: D102
        shape = (*part.shape[:-1], part.shape[-1] * peers.size)
        made: VocabParallelLogits = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=part.dtype, device=part.device, requires_grad=part.requires_grad
        )
        made.part, made._peers, made._whole = part, peers, None
        return made

    def whole(self) -> Tensor:
        """Return the whole logits; every rank has to call this."""
        if self._whole is None:
            self._whole = joined(self.part, self._peers)
        return self._whole

    @classmethod
    def _on_parts(cls, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a function of torch on the parts if it acts on each of them alone."""
        first = args[0] if args else None
        if not isinstance(first, cls):
            return NotImplemented
        if func is functional.cross_entropy:
            found = _cross_entropy(first, *args[1:], **kwargs)
        else:
            act = _ON_PARTS.get(func)
            found = None if act is None else act(first, func, *args[1:], **kwargs)
        return NotImplemented if found is None else found

    @classmethod
    def _refusal(cls, func: Any) -> str:
        return (
            f"{func} got logits whose vocabulary is split: call it outside of smp.loss_parallel(),"
            " or on logits.whole()"
        )

    @classmethod
    def _describes(cls, func: Any) -> bool:
        return func in _DESCRIPTIONS


def _cross_entropy(logits: VocabParallelLogits, *args: Any, **kwargs: Any) -> Tensor | None:
    """Return `torch.nn.functional.cross_entropy` of logits in parts; None if it needs whole ones.

    Classes have to be in the last dimension, and targets have to be their numbers.
    """
    bound = _CROSS_ENTROPY.bind(logits, *args, **kwargs)
    bound.apply_defaults()
    given, part = bound.arguments, logits.part
    target, reduction = given["target"], given["reduction"]
    are_numbers = isinstance(target, Tensor) and target.dtype is torch.int64
    if not are_numbers or target.shape != part.shape[:-1] or part.dim() > 2:
        return None
    is_plain = all(given[name] is None for name in ("weight", "size_average", "reduce"))
    if not is_plain or reduction not in {"mean", "sum", "none"}:
        return None
    options = {name: given[name] for name in ("ignore_index", "reduction", "label_smoothing")}
    return vocab_parallel_cross_entropy(part, target, logits._peers, **options)


def _same(logits: VocabParallelLogits, part: Tensor) -> VocabParallelLogits:
    return VocabParallelLogits(part, logits._peers)


def _each(logits: VocabParallelLogits, func: Any, *args: Any, **kwargs: Any) -> Tensor | None:
    """Run a function that acts on each number alone, with numbers for its other arguments."""
    if any(isinstance(each, Tensor) and each.dim() for each in (*args, *kwargs.values())):
        return None
    return _same(logits, func(logits.part, *args, **kwargs))


def _reshaped(logits: VocabParallelLogits, func: Any, *sizes: Any, **kwargs: Any) -> Tensor | None:
    """Run `view` or `reshape` if it keeps the last dimension."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    if kwargs or not given or not all(isinstance(each, int) for each in given):
        return None
    part, shape = logits.part, list(given)
    if shape.count(-1) == 1:
        known = -prod(shape)
        if known <= 0:
            return None
        shape[shape.index(-1)] = logits.numel() // known
    if shape[-1] != part.shape[-1] * logits._peers.size or prod(shape) != logits.numel():
        return None
    return _same(logits, func(part, (*shape[:-1], part.shape[-1])))


def _flattened(
    logits: VocabParallelLogits, func: Any, start_dim: int = 0, end_dim: int = -1
) -> Tensor | None:
    """Run `flatten` if it keeps the last dimension."""
    last = logits.part.dim() - 1
    if end_dim % (last + 1) >= last:
        return None
    return _same(logits, func(logits.part, start_dim, end_dim))


def _item(logits: VocabParallelLogits, func: Any, index: Any) -> Tensor | None:
    """Return some positions of the logits, if each keeps its whole vocabulary."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(_is_index(each) for each in parts):
        return None
    is_whole = parts[-1:] == (slice(None),) and not isinstance(parts[-1], Tensor)
    at = next((number for number, each in enumerate(parts) if each is ...), None)
    if at is not None and at + 1 < len(parts):
        keeps = is_whole
    else:
        taken = sum(map(_taken, parts))
        keeps = taken < logits.part.dim() or (taken == logits.part.dim() and is_whole)
    return _same(logits, func(logits.part, index)) if keeps else None


def _is_index(value: object) -> bool:
    kinds = (int, slice, EllipsisType, type(None), Tensor)
    return isinstance(value, kinds) and not isinstance(value, bool)


def _taken(index: object) -> int:
    """Return the number of dimensions that one part of an index takes."""
    if index is None or index is ...:
        return 0
    return index.dim() if isinstance(index, Tensor) and index.dtype is torch.bool else 1


_CROSS_ENTROPY: Final = signature(functional.cross_entropy)
_Act = Callable[..., Tensor | None]
_DESCRIPTIONS: Final = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "requires_grad")),
    *(getattr(Tensor, name).__get__ for name in ("ndim", "layout", "is_cuda", "is_meta")),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.ndimension, Tensor.nelement, Tensor.__len__),
    *(Tensor.is_floating_point, torch.is_floating_point, torch.numel, Tensor.is_complex),
}
_ON_PARTS: Final[dict[Any, _Act]] = {
    **dict.fromkeys((Tensor.view, Tensor.reshape, torch.reshape), _reshaped),
    **dict.fromkeys((Tensor.flatten, torch.flatten), _flattened),
    Tensor.__getitem__: _item,
    **dict.fromkeys(
        (
            *(Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16, Tensor.to),
            *(Tensor.contiguous, Tensor.clone, Tensor.detach, torch.clone, torch.detach),
            *(Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul),
            *(Tensor.div, Tensor.__truediv__, torch.div),
            *(Tensor.tanh, torch.tanh),
        ),
        _each,
    ),
}
