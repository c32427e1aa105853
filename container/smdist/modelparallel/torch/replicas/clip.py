# SPDX-License-Identifier: Apache-2.0
"""Gradients are clipped by the norm of the whole model's, not by that of a stage's.

`torch.nn.utils.clip_grad_norm_` does so by itself while a split model lives, however a script has
imported it: it looks up two helpers in its module each time, and those are ours then. They know
gradients of split models and leave all others to torch's own.

Every rank of the pipeline calls it, also one that has no gradients, and one on which nothing is
trained. A tied parameter counts once, by its first stage.

A parameter of no stage, such as a loss function's own, has its gradient where losses are: it counts
on the rank of the last stage. Nobody takes means of it over replicas, or gives its values to other
ranks: a parameter that is to be trained belongs into the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad

from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.inside import refuse_inside
from smdist.modelparallel.torch.replicas.held import numbers
from smdist.modelparallel.torch.replicas.norm import total_norm


class Clipped(Protocol):
    """A split model, as far as clipping goes."""

    @property
    def groups(self) -> Groups:
        """Where this rank is."""

    @property
    def held(self) -> Mapping[str, nn.Parameter]:
        """All parameters of this rank by name, frozen ones too."""

    @property
    def has_losses(self) -> bool:
        """Whether this rank has the last stage."""

    def counted_elsewhere(self) -> Iterable[nn.Parameter]:
        """Those of them that another rank of the pipeline has, too, and counts."""


_registered: list[ref[Any]] = []  # in the order in which models are cut
_plain: dict[str, Callable[..., Any]] = {}


def register(split: Clipped) -> None:
    """Know the gradients of a split model for as long as it lives."""
    _registered[:] = [ref(each) for each in (*_live(), split)]
    if not _plain:
        _hook()


def name_of(parameter: Tensor) -> str:
    """A parameter's in its split model, for messages; "" where it is of none."""
    found = (name for s in _live() for name, each in s.held.items() if each is parameter)
    return next(found, "")


def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale gradients so that the norm of all of them together is at most `max_norm`.

    Args:
        parameters: Those of this rank, or its model.
        max_norm: Of the gradients afterwards.
        norm_type: Any that torch knows, "inf" too.
        error_if_nonfinite: Raise RuntimeError on all ranks where the norm is no number.
        foreach: As torch has it.

    Returns:
        The norm before, the same on all ranks.
    """
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    if not isinstance(parameters, Tensor):
        parameters = list(parameters)
    return clip_grad.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def _hook() -> None:
    for name, ours in (("_get_total_norm", _norm), ("_clip_grads_with_norm_", _clip)):
        _plain[name] = getattr(clip_grad, name)
        setattr(clip_grad, name, ours)
        public = name.removeprefix("_")
        if getattr(nn.utils, public, None) is _plain[name]:
            setattr(nn.utils, public, ours)


@torch.no_grad()
def _norm(
    tensors: Tensor | Iterable[Tensor],
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Stands for torch's own."""
    found = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    # no_grad() puts a frame of its own between us and the caller
    split = _split_of(found) if found else _split_by_caller(sys._getframe(2))
    if split is None:
        norm: Tensor = _plain["_get_total_norm"](found, norm_type, error_if_nonfinite, foreach)
        return norm
    refuse_inside("clip_grad_norm_()")
    total = total_norm(_counted(found, split), float(norm_type), split.groups)
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"the norm of order {norm_type} of the gradients of all stages is {total.item()}, so "
            "they cannot be clipped; error_if_nonfinite=False scales them all the same"
        )
    return total.to(found[0].device) if found else total


@torch.no_grad()
def _clip(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Stands for torch's own."""
    every = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [each.grad for each in every if each.grad is not None]
    if _split_of(gradients) is None:
        _plain["_clip_grads_with_norm_"](every, max_norm, total_norm, foreach)
        return
    scale = torch.clamp(float(max_norm) / (total_norm + 1e-6), max=1.0)
    for gradient in gradients:
        numbers(gradient).mul_(scale.to(gradient.device))


def _split_of(gradients: list[Tensor]) -> Clipped | None:
    """The split model that one of these gradients is of."""
    wanted = {id(gradient) for gradient in gradients}
    for split in _live():
        if any(p.grad is not None and id(p.grad) in wanted for p in split.held.values()):
            return split
    return None


def _live() -> Iterator[Clipped]:
    for reference in _registered:
        split = reference()
        if split is not None:
            yield split


def _split_by_caller(frame: FrameType) -> Clipped | None:
    """The split model whose parameters have no gradient here: other ranks wait for this one.

    Where nothing at all is passed it is the one that was cut last.
    """
    passed = frame.f_locals.get("parameters")
    if isinstance(passed, list) and passed:
        wanted = {id(parameter) for parameter in passed}
        known = (s for s in _live() if any(id(p) in wanted for p in s.held.values()))
        return next(known, None)
    return next(reversed(list(_live())), None)


def _counted(gradients: list[Tensor], split: Clipped) -> list[Tensor]:
    """Those that no other rank of the pipeline counts."""
    elsewhere = {id(p.grad) for p in split.counted_elsewhere()}
    own = {id(p.grad) for each in _live() for p in each.held.values()}
    is_here = split.has_losses
    return [g for g in gradients if id(g) not in elsewhere and (id(g) in own or is_here)]
