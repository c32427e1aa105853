# SPDX-License-Identifier: Apache-2.0
"""Values between split regions of which this rank has a slice of the sequence.

    row ──▶ SequencePart ──▶ dropout, sum, norm ──▶ column       reduce-scatter, all-gather
                         └─▶ any other function                  the slices are gathered

A row returns them in place of a whole sum. Functions that compute each position alone compute this
rank's slice; a parameter in them, such as a norm's weight, gets the sum of all ranks' gradients.
Any other function gets the whole value, so no model is computed in another way: at most, one has
more messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from smdist.modelparallel.torch.program.pytree import flatten, map_leaves
from smdist.modelparallel.torch.tensor_splits.part_tensor import PartTensor
from smdist.modelparallel.torch.tensor_splits.peers import Peers, is_silent
from smdist.modelparallel.torch.tensor_splits.region_borders import entered, summed
from smdist.modelparallel.torch.tensor_splits.sequence_borders import (
    SequenceSplit,
    assembled,
    scattered,
    sliced,
)
from smdist.modelparallel.torch.tensor_splits.split_dropout import SplitDraw

_SEQUENCE: Final = 1  # dimension of positions, of (samples, positions, width)
_splitting: list[None] = []  # one element for each open `splitting_sequences` block


@contextmanager
def splitting_sequences() -> Iterator[None]:
    """Split sequences within the block as in training, also where no messages are sent.

    One rank alone can then count the memory of slices. Their values have no meaning.
    """
    _splitting.append(None)
    try:
        yield
    finally:
        _splitting.pop()


def summed_or_scattered(term: Tensor, peers: Peers) -> Tensor:
    """Return the sum of a tensor over ranks: this rank's slice of the sequence where it can be.

    The sum is whole without gradients, in a capture, and if the tensor has not the three dimensions
    (samples, positions, width) or fewer positions than there are ranks.

    Args:
        term: This rank's share of the output of a split region.
        peers: Ranks over which the region is split.
    """
    is_sequence = term.dim() == _SEQUENCE + 2 and term.shape[_SEQUENCE] >= peers.size
    is_traced = not _splitting and (is_silent(term) or torch.compiler.is_compiling())
    if not is_sequence or is_traced or not torch.is_grad_enabled():
        return summed(term, peers)
    split = SequenceSplit(peers, _SEQUENCE, term.shape[_SEQUENCE])
    return SequencePart(scattered(term, split), split)


def sliced_sequence(value: Any, peers: Peers) -> Any:
    """Return this rank's slice of a tensor that is whole on every rank; another value unchanged.

    Args:
        value: Tensor of shape (samples, positions, width), or any other object.
        peers: Ranks that have the slices.
    """
    is_sequence = isinstance(value, Tensor) and value.is_floating_point()
    if not is_sequence or value.dim() != _SEQUENCE + 2 or value.shape[_SEQUENCE] < peers.size:
        return value
    split = SequenceSplit(peers, _SEQUENCE, value.shape[_SEQUENCE])
    return SequencePart(sliced(value, split), split)


def own_slice(value: Tensor, split: SequenceSplit) -> Tensor:
    """Return this rank's slice of a value that is whole on every rank, or in slices already."""
    return value.part if isinstance(value, SequencePart) else sliced(value, split)


def whole_sequences(value: Any) -> Any:
    """Return a nested value with whole tensors in place of slices; all ranks call this.

    A value without slices is returned itself.
    """
    return SequencePart.wholes(value)


class SequencePart(PartTensor):
    """Tensor of the shape of a whole value, of which this rank has a slice of the positions.

    Args:
        part: This rank's slice.
        positions: Split of the positions.
    """

    positions: SequenceSplit
    _part: Tensor
    _whole: Tensor | None
    _seen: int

    @staticmethod
    def __new__(cls: Any, part: Tensor, positions: SequenceSplit) -> SequencePart:  # noqa: D102
        shape = list(part.shape)
        shape[positions.dim] = positions.length
        # Without a gradient of its own: autograd refuses it where it cannot follow the slice.
        made: SequencePart = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=part.dtype, device=part.device, requires_grad=False
        )
        made._part, made.positions, made._whole = part, positions, None
        return made

    @property
    def part(self) -> Tensor:
        """This rank's slice, in the autograd graph."""
        if self._whole is not None and self._whole._version != self._seen:
            self._seen = self._whole._version  # changed in place, or by a view
            with torch.inference_mode(False), torch.enable_grad():
                self._part = sliced(self._whole, self.positions)
        return self._part

    def whole(self) -> Tensor:
        """Return the whole value, in the autograd graph; every rank has to call this."""
        if self._whole is None:
            with torch.inference_mode(False), torch.enable_grad():
                self._whole = assembled(self._part, self.positions)
            self._seen = self._whole._version
        return self._whole

    def replace_part(self, part: Tensor) -> SequencePart:
        """Change the values in place: `part` is this rank's slice of the new ones."""
        self._part = part.to(self._part.dtype)
        return self

    @property
    def is_gathered(self) -> bool:
        """True if a function has got the whole value."""
        return self._whole is not None

    @classmethod
    def _on_parts(cls, func: Any, args: _Arguments, kwargs: _Options) -> Any:
        """Run a function of torch on slices if it computes each position alone."""
        if func in _OF_PART:
            return func(args[0].part)
        if func in _REFUSED:
            raise TypeError(cls._refusal(func.__name__))
        act = _ON_SLICES.get(func)
        found = None if act is None else act(func, args, kwargs)
        return NotImplemented if found is None else found

    @classmethod
    def _on_wholes(cls, func: Any, args: _Arguments, kwargs: _Options) -> Any:
        """Run a function of torch on whole values; return a slice that it has changed in place."""
        result = super()._on_wholes(func, args, kwargs)
        given = [leaf for leaf in flatten((args, kwargs))[0] if isinstance(leaf, cls)]
        return next((each for each in given if each._whole is result), result)

    @classmethod
    def _refusal(cls, func: Any) -> str:
        return (
            f"{func} got a tensor whose sequence is split over ranks: call it on tensor.whole(),"
            " or leave sequence_parallel out"
        )

    @classmethod
    def _describes(cls, func: Any) -> bool:
        return func in _DESCRIPTIONS


_Arguments = tuple[Any, ...]
_Options = Mapping[str, Any]
_Act = Callable[[Any, _Arguments, _Options], Any]


def _each(func: Any, args: _Arguments, kwargs: _Options) -> Tensor | None:
    """Run a function that acts on each number alone, and broadcasts its tensors."""
    if "out" in kwargs:
        return None
    leaves = [leaf for leaf in flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    first = next(leaf for leaf in leaves if isinstance(leaf, SequencePart))
    if not all(_fits(leaf, first) for leaf in leaves):
        return None
    args, kwargs = map_leaves(lambda leaf: _slice_of(leaf, first), (args, kwargs))
    found = func(*args, **kwargs)
    return first if found is first.part else SequencePart(found, first.positions)


def _fits(leaf: Tensor, first: SequencePart) -> bool:
    """Return True if a tensor broadcasts to slices: it has the same positions, or none."""
    if isinstance(leaf, SequencePart):
        return leaf.positions == first.positions and leaf.dim() == first.dim()
    return leaf.dim() <= first.dim() and _positions(leaf, first) in (1, first.positions.length)


def _positions(leaf: Tensor, first: SequencePart) -> int:
    dim = first.positions.dim - first.dim()
    return leaf.shape[dim] if leaf.dim() >= -dim else 1


def _slice_of(leaf: Any, first: SequencePart) -> Any:
    """Return what of an argument meets the slice of another one."""
    if isinstance(leaf, SequencePart):
        return leaf.part
    if not isinstance(leaf, Tensor):
        return leaf
    split = first.positions
    if _positions(leaf, first) == 1:
        is_trained = leaf.requires_grad and torch.is_grad_enabled()
        return entered(leaf, split.peers) if is_trained else leaf
    return sliced(
        leaf, SequenceSplit(split.peers, leaf.dim() + split.dim - first.dim(), split.length)
    )


def _changed(func: Any, args: _Arguments, kwargs: _Options) -> Tensor | None:
    """Run a function that changes each number of its first tensor alone, in place."""
    first = args[0]
    if not isinstance(first, SequencePart) or not _is_replaceable(first):
        return None
    found = _each(_OUT_OF_PLACE[func], args, kwargs)
    return None if found is None else first.replace_part(found.part)  # type: ignore[attr-defined]


def _is_replaceable(first: SequencePart) -> bool:
    """Return True if a new slice can be put in place of another one that is changed in place."""
    return torch.is_grad_enabled() and not first.is_gathered


def _reduced(func: Any, args: _Arguments, kwargs: _Options) -> Tensor | None:
    """Run a mean or sum over the last dimension that keeps it, with length 1."""
    first, *rest = args
    given = dict(zip(("dim", "keepdim"), rest, strict=False)) | dict(kwargs)
    dim = given.get("dim")
    dims = tuple(dim) if isinstance(dim, tuple | list) else (dim,)
    is_last = dims in {(-1,), (first.dim() - 1,)} and first.positions.dim < first.dim() - 1
    if not is_last or given.get("keepdim") is not True or given.keys() - {"dim", "keepdim"}:
        return None
    return SequencePart(func(first.part, dim=dim, keepdim=True), first.positions)


def _normed(func: Any, args: _Arguments, kwargs: _Options) -> Tensor | None:
    """Run a norm over the dimensions after that of positions."""
    given = dict(zip(_NORMS[func], args, strict=False)) | dict(kwargs)
    first, shape = given.pop("input"), given["normalized_shape"]
    others = [each for each in given.values() if isinstance(each, SequencePart)]
    if not isinstance(first, SequencePart) or others:
        return None
    if len(shape) >= first.dim() - first.positions.dim:
        return None
    for name in ("weight", "bias"):
        if isinstance(given.get(name), Tensor):
            given[name] = _entered(given[name], first.positions.peers)
    return SequencePart(func(first.part, **given), first.positions)


def _entered(parameter: Tensor, peers: Peers) -> Tensor:
    is_trained = parameter.requires_grad and torch.is_grad_enabled()
    return entered(parameter, peers) if is_trained else parameter


def _dropped(
    func: Any,  # noqa: ARG001  always torch's dropout
    args: _Arguments,
    kwargs: _Options,
) -> Tensor | None:
    """Run dropout with this rank's slice of the whole mask."""
    given = dict(zip(("input", "p", "training", "inplace"), args, strict=False)) | dict(kwargs)
    first, rate = given["input"], given.get("p", 0.5)
    if not given.get("training", True) or not rate:
        return first  # type: ignore[no-any-return]
    if not 0 <= rate < 1 or (given.get("inplace") and not _is_replaceable(first)):
        return None
    split = first.positions
    draw = SplitDraw(split.dim, split.peers.size, split.peers.rank, length=split.length)
    found = first.part * draw.scales(first.part, rate)
    return first.replace_part(found) if given.get("inplace") else SequencePart(found, split)


def _item(func: Any, args: _Arguments, kwargs: _Options) -> Tensor | None:  # noqa: ARG001  its form
    """Return the tensor itself if all of its elements are taken."""
    first, index = args
    parts = index if isinstance(index, tuple) else (index,)
    takes_all = all(each in (slice(None), slice(0, None)) for each in map(_plain, parts))
    return first if takes_all and isinstance(first, SequencePart) else None


def _hooked(func: Any, args: _Arguments, kwargs: _Options) -> Any:  # noqa: ARG001  its form
    """Register a hook of the gradient, which gets and returns the whole gradient."""
    first, hook = args
    split = first.positions

    def of_part(grad: Tensor) -> Tensor | None:
        found = hook(split.all_gather(grad))
        return None if found is None else split.own(found)

    return first.part.register_hook(of_part)


def _reshaped(func: Any, args: _Arguments, kwargs: _Options) -> Tensor | None:  # noqa: ARG001
    """Return the tensor itself if it gets the shape that it has."""
    first, *sizes = args
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes
    shape = list(given)
    if kwargs or not all(isinstance(each, int) for each in shape) or len(shape) != first.dim():
        return None
    if shape.count(-1) == 1:
        shape[shape.index(-1)] = first.numel() // max(1, -prod(shape))
    return first if shape == list(first.shape) else None


def _plain(index: object) -> object:
    """Return an index if it is a slice or an ellipsis; the latter as a slice of all."""
    if index is ...:
        return slice(None)
    return index if isinstance(index, slice) else None


_NORMS: Final = {
    functional.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps"),
    torch.layer_norm: ("input", "normalized_shape", "weight", "bias", "eps", "cudnn_enable"),
    functional.rms_norm: ("input", "normalized_shape", "weight", "eps"),
    torch.rms_norm: ("input", "normalized_shape", "weight", "eps"),
}
_OUT_OF_PLACE: Final = {
    Tensor.add_: torch.add,
    Tensor.__iadd__: torch.add,
    Tensor.sub_: torch.sub,
    Tensor.__isub__: torch.sub,
    Tensor.mul_: torch.mul,
    Tensor.__imul__: torch.mul,
    Tensor.div_: torch.div,
    Tensor.__itruediv__: torch.div,
}
_DESCRIPTIONS: Final = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout")),
    *(
        getattr(Tensor, f"is_{name}").__get__
        for name in ("nested", "sparse", "quantized", "cuda", "meta")
    ),
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.ndimension, Tensor.nelement, Tensor.__len__),
    *(Tensor.is_floating_point, torch.is_floating_point, torch.numel, Tensor.is_complex),
}
_OF_PART: Final = {
    *(getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf", "_base"))
}
_REFUSED: Final = {
    *(Tensor.retain_grad, Tensor.requires_grad_, Tensor.detach_),
    *(vars(torch._C.TensorBase)[name].__set__ for name in ("data", "requires_grad")),
}
_ON_SLICES: Final[dict[Any, _Act]] = {
    **dict.fromkeys(_OUT_OF_PLACE, _changed),
    **dict.fromkeys((Tensor.mean, torch.mean, Tensor.sum, torch.sum), _reduced),
    **dict.fromkeys(_NORMS, _normed),
    functional.dropout: _dropped,
    Tensor.__getitem__: _item,
    Tensor.register_hook: _hooked,
    **dict.fromkeys((Tensor.view, Tensor.reshape, torch.reshape), _reshaped),
    **dict.fromkeys(
        (
            *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
            *(torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__, torch.rsub),
            *(torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__),
            *(torch.div, Tensor.div, Tensor.__truediv__, Tensor.__rtruediv__),
            *(torch.pow, Tensor.pow, Tensor.__pow__, torch.square, Tensor.square),
            *(torch.sqrt, Tensor.sqrt, torch.rsqrt, Tensor.rsqrt, torch.neg, Tensor.__neg__),
            *(torch.tanh, Tensor.tanh, torch.sigmoid, Tensor.sigmoid),
            *(functional.gelu, functional.silu, torch.relu, Tensor.relu),
            *(torch.clone, Tensor.clone, Tensor.contiguous, Tensor.type_as),
            *(Tensor.to, Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16),
        ),
        _each,
    ),
}
