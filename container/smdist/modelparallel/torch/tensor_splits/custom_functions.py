# SPDX-License-Identifier: Apache-2.0
"""Patch of torch by which custom autograd functions get whole values in place of slices."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.distributed.fsdp._fully_shard._fsdp_param_group import RegisterPostBackwardFunction
from torch.utils.checkpoint import CheckpointFunction

from smdist.modelparallel.torch.tensor_splits.sequence_part import SequencePart, whole_sequences


def follow_functions() -> None:
    """Let custom autograd functions get whole values. Call this function only once.

    Their arguments reach autograd without `__torch_function__`. A reentrant activation checkpoint
    is such a function, whose own function may also return slices. FSDP2's function returns its
    inputs, so slices stay slices.
    """
    between: Any = torch.autograd.function._SingleLevelFunction
    plain = between.apply.__func__ if "apply" in vars(between) else None

    def run(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if plain is not None:
            return plain(cls, *args, **kwargs)
        return super(between, cls).apply(*args, **kwargs)

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is RegisterPostBackwardFunction:
            return _as_given(args, run(cls, *map(_part, args)))
        if cls is CheckpointFunction:
            args = (_with_whole_results(args[0]), *args[1:])
        return run(cls, *map(_whole, args), **kwargs)

    between.apply = classmethod(apply)


def _part(argument: Any) -> Any:
    return argument.part if isinstance(argument, SequencePart) else argument


def _whole(argument: Any) -> Any:
    """Return a whole tensor for a slice. Autograd follows no tensors in lists or dicts."""
    return argument.whole() if isinstance(argument, SequencePart) else argument


def _as_given(args: tuple[Any, ...], found: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of FSDP2's identity function as values of the types of its inputs."""
    return tuple(
        SequencePart(each, given.positions) if isinstance(given, SequencePart) else each
        for given, each in zip(args[1:], found, strict=True)
    )


def _with_whole_results(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return whole_sequences(function(*args, **kwargs))

    return run
