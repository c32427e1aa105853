# SPDX-License-Identifier: Apache-2.0
"""Broadcast of a model's parameters and of an optimizer's state, so that ranks begin alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.torch.horovod.broadcast_calls import root_in, start_broadcast
from smdist.dataparallel.torch.horovod.handles import synchronize
from smdist.dataparallel.torch.horovod.object_exchange import broadcast_object
from smdist.dataparallel.torch.horovod.process_set import (
    ProcessSet,
    after_init,
    global_process_set,
)


@dataclass(frozen=True, slots=True)
class _Absent:
    """Place of a tensor in a state that is sent without its tensors."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


@after_init
def broadcast_parameters(
    params: Any, root_rank: int, process_set: ProcessSet = global_process_set
) -> None:
    """Replace tensors on all ranks by those of rank `root_rank`.

    Args:
        params: A state_dict, a list of tensors, or an iterable of (name, tensor), such as
            model.named_parameters(). Values of a state_dict that are no tensors are skipped.
        root_rank: The rank of the job that sends.
        process_set: The ranks that take part.

    Raises:
        OptionError: `params` is something else, or the root does not exist.
        HorovodMismatchError: Ranks have different tensors; the next call works.
        HorovodInternalError: A rank was lost.
    """
    tensors = _tensors_of(params)
    if tensors:
        synchronize(start_broadcast(tensors, root_rank, None, process_set, is_in_place=True))


def _tensors_of(params: Any) -> list[torch.Tensor]:
    if isinstance(params, Mapping):
        return [each for _, each in sorted(params.items()) if isinstance(each, torch.Tensor)]
    is_list = isinstance(params, Iterable) and not isinstance(params, (torch.Tensor, str))
    found = [each[1] if isinstance(each, tuple) else each for each in params] if is_list else []
    require(
        is_list and all(isinstance(each, torch.Tensor) for each in found),
        what=f"params is of type {type(params).__name__}",
        why="it must be a state_dict, a list of tensors, or an iterable of (name, tensor)",
        hint="Pass model.state_dict() or model.named_parameters()",
        about="params",
    )
    return found


@after_init
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Replace the optimizer's state and options on all ranks by those of rank `root_rank`.

    Tensors keep their dtypes, and options such as the learning rate their types. An optimizer
    without a state, which has made no step, gets none.

    Args:
        optimizer: The optimizer, which may be the result of DistributedOptimizer().
        root_rank: The rank of the job that sends.
        model: Must be None, or have all parameters of the optimizer; Horovod needs it for
            optimizers whose state has to be initialized, which is not so here.
        process_set: The ranks that take part.

    Raises:
        OptionError: `model` has other parameters, or the root does not exist.
        HorovodInternalError: A rank was lost.
    """
    _check_model(optimizer, model)
    is_root = process_set.communicator().rank == root_in(process_set, root_rank)
    tensors: list[torch.Tensor] = []
    skeleton = _without_tensors(optimizer.state_dict(), tensors) if is_root else None
    skeleton = broadcast_object(skeleton, root_rank, process_set=process_set)
    state = _with_tensors(skeleton, tensors if is_root else None)
    found: list[torch.Tensor] = []
    _without_tensors(state, found)
    if found:
        synchronize(start_broadcast(found, root_rank, None, process_set, is_in_place=True))
    if is_root:
        return
    groups = optimizer.param_groups  # a learning rate scheduler may have these very dicts
    optimizer.load_state_dict(state)
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        group.update(loaded)
    optimizer.param_groups = groups


def _check_model(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    if model is None:
        return
    of_model = {id(each) for each in model.parameters()}
    of_optimizer = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if not of_optimizer <= of_model:
        raise OptionError(
            f"model has {len(of_optimizer - of_model)} parameters of the optimizer less",
            "the optimizer belongs to another model",
            "Pass the model of the optimizer, or leave model out",
            about="model",
            kind="conflict",
        )


def _without_tensors(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return nested dicts, lists and tuples with _Absent for tensors, which go into `tensors`."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return _Absent(tuple(value.shape), value.dtype, value.device.type)
    if isinstance(value, dict):
        return {key: _without_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(each, tensors) for each in value)
    return value


def _with_tensors(value: Any, tensors: list[torch.Tensor] | None) -> Any:
    """Return the value with tensors in the places of _Absent: new ones if `tensors` is None."""
    if isinstance(value, _Absent):
        if tensors is not None:
            return tensors.pop(0)
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    if isinstance(value, dict):
        return {key: _with_tensors(each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(each, tensors) for each in value)
    return value
