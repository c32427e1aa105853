# SPDX-License-Identifier: Apache-2.0
"""Gradient clipping by the norm of the whole model, not by the norm of one rank's stages.

Once a parallel model exists, `torch.nn.utils.clip_grad_norm_` clips in this way, too. This module
replaces the two functions that torch's `clip_grad_norm_` calls. So a script may have imported
`clip_grad_norm_` before, or under another name. Gradients of other models are passed to torch's own
functions.

Every rank of the pipeline must call `clip_grad_norm_`, also a rank without gradients or trained
parameters. A tied parameter counts once, on the rank of its first stage.

A parameter outside of the model, such as one of the loss function, has a gradient on the rank of
the last stage alone, and counts there. Its gradient is not averaged over replicas, so put such
parameters into the model.
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

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.replicas.grad_norm import total_norm
from smdist.modelparallel.torch.replicas.gradient_buckets import numbers
from smdist.modelparallel.torch.replicas.host_update import acting
from smdist.modelparallel.torch.replicas.master_weights import MasterWeights
from smdist.modelparallel.torch.session.current_model import refuse_in_step
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.tensor_splits import split_of


class ClippedModel(Protocol):
    """Part of a parallel model's interface that gradient clipping uses."""

    @property
    def groups(self) -> Groups:
        """Process groups of this rank."""

    @property
    def held(self) -> Mapping[str, nn.Parameter]:
        """All parameters of this rank by name, including frozen ones."""

    @property
    def has_losses(self) -> bool:
        """True if this rank has the last stage, and with it the loss."""

    @property
    def masters(self) -> MasterWeights | None:
        """Master weights of this rank; None if there are none."""

    def counted_elsewhere(self) -> Iterable[nn.Parameter]:
        """Return this rank's tied parameters that another pipeline rank counts in the norm.

        A tied parameter is held by several ranks, and counts on the rank of its first stage.
        """


_registered: list[ref[Any]] = []  # in the order in which models are cut
_plain: dict[str, Callable[..., Any]] = {}


def register(split: ClippedModel) -> None:
    """Register a parallel model, so that clipping uses the norm of all its stages.

    Only a weak reference to the model is kept.
    """
    _registered[:] = [ref(each) for each in (*_live(), split)]
    if not _plain:
        _hook()


def name_of(parameter: Tensor) -> str:
    """Return the name of a parameter in its parallel model; "" if no parallel model has it."""
    found = (name for s in _live() for name, each in s.held.items() if each is parameter)
    return next(found, "")


def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale gradients of all stages so that their total norm is at most `max_norm`.

    Every rank of the pipeline must call this function.

    Args:
        parameters: Parameters of this rank, or the model.
        max_norm: Largest norm of the gradients afterwards.
        norm_type: Order of the norm, as in `torch.linalg.vector_norm`; math.inf for the maximum.
        error_if_nonfinite: True raises RuntimeError on all ranks if the norm is not finite.
        foreach: See `torch.nn.utils.clip_grad_norm_`.

    Returns:
        Norm before clipping, the same on all ranks of the pipeline.
    """
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    if not isinstance(parameters, Tensor):
        parameters = list(parameters)
    return clip_grad.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)


def _hook() -> None:
    """Replace two functions that torch's `clip_grad_norm_` calls by functions of this module."""
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
    """Return the norm of gradients over all stages of their parallel model.

    This function replaces torch's `_get_total_norm`, and has the same arguments. For gradients of
    other models it calls torch's own function.
    """
    found = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    # no_grad() adds one frame between this function and the caller
    split = _split_of(found) if found else _split_by_caller(sys._getframe(2))
    if split is None:
        norm: Tensor = _plain["_get_total_norm"](found, norm_type, error_if_nonfinite, foreach)
        return norm
    refuse_in_step("clip_grad_norm_()")
    _refuse_scaled(split)
    total = total_norm(_counted(found, split), float(norm_type), split.groups, _parts())
    if error_if_nonfinite and not total.isfinite():
        raise RuntimeError(
            f"the norm of order {norm_type} of the gradients of all stages is {total.item()}, so "
            "the gradients cannot be clipped. Pass error_if_nonfinite=False to scale them anyway"
        )
    return total.to(found[0].device) if found else total


@torch.no_grad()
def _clip(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    total_norm: Tensor,
    foreach: bool | None = None,
) -> None:
    """Scale gradients in place so that their norm is at most `max_norm`.

    This function replaces torch's `_clip_grads_with_norm_`.

    Args:
        parameters: Parameters of this rank; those without a gradient are skipped.
        max_norm: Largest norm of the gradients of all stages afterwards.
        total_norm: Norm of the gradients of all stages before.
        foreach: Argument for torch's own function, which handles gradients of other models. Ignored
            for gradients of a parallel model.
    """
    every = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    gradients = [each.grad for each in every if each.grad is not None]
    if _split_of(gradients) is None:
        _plain["_clip_grads_with_norm_"](every, max_norm, total_norm, foreach)
        return
    scale = torch.clamp(float(max_norm) / (total_norm + 1e-6), max=1.0)
    for gradient in gradients:
        numbers(gradient).mul_(scale.to(gradient.device))


def _refuse_scaled(split: ClippedModel) -> None:
    """Raise an error if gradients are multiplied by the loss scale, so that their norm is, too."""
    masters = split.masters
    if masters is not None and masters.scaled and not masters.is_in_place:
        raise OptionError(
            "clip_grad_norm_() is called with fp16=True",
            "gradients are multiplied by the loss scale until the optimizer's step",
            "Call optimizer.clip_master_grads(max_norm) of the smp.DistributedOptimizer, or pass"
            " gradient_clipping= to ModelParallel",
            about="clip_grad_norm_",
            kind="scaled",
        )


def _split_of(gradients: list[Tensor]) -> ClippedModel | None:
    """Return the parallel model that has one of these gradients; None if no model has."""
    wanted = {id(gradient) for gradient in gradients}
    for split in _live():
        own = (acting(parameter).grad for parameter in split.held.values())
        if any(gradient is not None and id(gradient) in wanted for gradient in own):
            return split
    return None


def _live() -> Iterator[ClippedModel]:
    """Yield the registered models that still exist, in the order of registration."""
    for reference in _registered:
        split = reference()
        if split is not None:
            yield split


def _split_by_caller(frame: FrameType) -> ClippedModel | None:
    """Find the parallel model in a call of `clip_grad_norm_` that finds no gradients on this rank.

    The other ranks of the pipeline wait for this rank to compute the norm with them.

    Args:
        frame: Frame of the function that called torch's `_get_total_norm`.

    Returns:
        Model that has the parameters to clip; if the call has no parameters, the latest model. None
        if there is no such model.
    """
    passed = frame.f_locals.get("parameters")
    if isinstance(passed, list) and passed:
        wanted = {id(parameter) for parameter in passed}
        known = (s for s in _live() if any(id(acting(p)) in wanted for p in s.held.values()))
        return next(known, None)
    return next(reversed(list(_live())), None)


def _parts() -> set[int]:
    """Return the ids of the gradients of parameters that are split over ranks."""
    return {
        id(acting(parameter).grad)
        for each in _live()
        for parameter in each.held.values()
        if split_of(parameter) is not None
    }


def _counted(gradients: list[Tensor], split: ClippedModel) -> list[Tensor]:
    """Return the gradients that this rank adds to the norm of its pipeline.

    Each gradient must count on one rank only. So a tied parameter is left out if another rank
    counts it. Gradients of tensors outside of the model count on the rank of the last stage.

    Args:
        gradients: Gradients to clip on this rank.
        split: Parallel model whose gradients are clipped.
    """
    elsewhere = {id(acting(p).grad) for p in split.counted_elsewhere()}
    own = {id(acting(p).grad) for each in _live() for p in each.held.values()}
    is_here = split.has_losses
    return [g for g in gradients if id(g) not in elsewhere and (id(g) in own or is_here)]
