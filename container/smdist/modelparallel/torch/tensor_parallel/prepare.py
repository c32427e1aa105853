# SPDX-License-Identifier: Apache-2.0
"""Tensor parallelism before the first step: find a plan on one rank, and split the model on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.torch.accelerator import accelerator_of
from smdist.modelparallel.torch.program.pytree import flatten, unflatten
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.session.rank_team import (
    RankTeam,
    error_text,
    raise_together,
    rank_failure,
)
from smdist.modelparallel.torch.tensor_parallel.data_flow import Flow, flow_of, flow_of_values
from smdist.modelparallel.torch.tensor_parallel.search import find_plan
from smdist.modelparallel.torch.tensor_parallel.split_model import split_model
from smdist.modelparallel.torch.tensor_parallel.tensor_plan import ModuleSplit, TensorPlan
from smdist.modelparallel.torch.tensor_splits import GroupPeers, gathered_logits

_SAMPLES: Final = 2  # size of the batch on which splits are proved
_SHOWN: Final = 3  # largest number of modules that an error names
_POSITIONS: Final = 16  # length of its sequences, where the model accepts shorter ones


def find(
    model: nn.Module, arguments: tuple[Any, Any], degree: int, *, sequence_parallel: bool = False
) -> TensorPlan:
    """Return the plan of tensor parallelism for a model, which stays unchanged.

    Args:
        model: The whole model, also on the meta device.
        arguments: Positional and keyword arguments of a call.
        degree: Number of ranks over which tensors are split.
        sequence_parallel: True to split sequences between split regions, too.

    Raises:
        OptionError: The forward pass fails, or no module of the model can be split.
    """
    with gathered_logits():  # the first step may be in a block of smp.loss_parallel
        flow = _flow(model, arguments)
        return find_plan(
            model, flow, degree, sequence_parallel=sequence_parallel,
            on_accelerator=_runs_on_accelerator(model, arguments),
        )  # fmt: skip


def _runs_on_accelerator(model: nn.Module, arguments: tuple[Any, Any]) -> bool:
    """Return True if a model is on an accelerator, or moves to that of its arguments."""
    leaves, _ = flatten(arguments)
    tensors = [*model.parameters(), *(leaf for leaf in leaves if isinstance(leaf, Tensor))]
    return accelerator_of(tensors) is not None


def split(
    model: nn.Module,
    read: Callable[[], tuple[Any, Any]],
    groups: Groups,
    world: Any,
    *,
    sequence_parallel: bool = False,
) -> TensorPlan:
    """Find a plan on rank 0, and split the model in place on every rank; all must call this.

    Args:
        model: The whole model.
        read: Function that returns positional and keyword arguments of a call of the model.
        groups: Process groups of this rank.
        world: Process group of all ranks.
        sequence_parallel: True to split sequences between split regions, too.

    Raises:
        OptionError: No module can be split, or the model differs between ranks; raised on every
            rank.
    """
    team = RankTeam.of(world)
    plan = team.run_on_first(
        lambda: find(model, read(), groups.tp_size, sequence_parallel=sequence_parallel),
        _portable,
        raises_own=True,
    )
    with raise_together(world, "tensor parallelism"):
        _check(model, plan)
    split_model(model, plan, GroupPeers(groups.of(Axis.TP)))
    return plan


def _check(model: nn.Module, plan: TensorPlan) -> None:
    """Raise an OptionError if the model on this rank is not the one that the plan is for."""
    others = [each.name for each in plan.modules if not _is_alike(model, each)]
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise OptionError(
            f"{', '.join(map(repr, others[:_SHOWN]))}{more} of {type(model).__name__} on this rank"
            " is not as in the model of rank 0",
            "all ranks split the same model",
            "Create the same model on every rank",
            about=others[0],
            kind="difference",
        )


def _is_alike(model: nn.Module, split: ModuleSplit) -> bool:
    """Return True if a model has the module of a split, with parameters of the split's lengths."""
    try:
        module = model.get_submodule(split.name)
        shapes = [getattr(module, name).shape[dim] for name, dim in split.dims.items()]
    except (AttributeError, IndexError):
        return False
    return not set(shapes) - {sum(split.sections)}


def _portable(error: BaseException) -> OptionError:
    """Convert an error of rank 0's search to the error that other ranks raise."""
    if isinstance(error, OptionError):
        return error
    return rank_failure(0, "the search for split layers", error_text(error))


def _flow(model: nn.Module, arguments: tuple[Any, Any]) -> Flow:
    """Return the flow of values for a small batch; for the whole one if the model refuses it.

    The model runs without values first, and with them if it needs them and has them.
    """
    has_values = not any(tensor.is_meta for tensor in model.state_dict().values())
    for find_flow in (flow_of, flow_of_values) if has_values else (flow_of,):
        for small in (_shortened(arguments), arguments):
            try:
                return find_flow(model, small)
            except Exception as error:
                last = error
    raise OptionError(
        f"the layers of {type(model).__name__} to split cannot be found",
        f"its forward pass raises {error_text(last)}",
        "Leave tensor_parallel_degree out, or correct the forward pass",
        about="tensor_parallel_degree",
        kind="failed",
    ) from last


def _shortened(arguments: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return arguments with few samples, and with short sequences if all are ids of one length."""
    leaves, form = flatten(arguments)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
    lengths = {leaf.shape[1] for leaf in tensors if leaf.dim() > 1}
    are_ids = all(leaf.dim() == 2 and not leaf.is_floating_point() for leaf in tensors)
    is_long = are_ids and len(lengths) == 1

    def short(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return leaf
        few = leaf[:_SAMPLES]
        return few[:, :_POSITIONS] if is_long else few

    with torch.no_grad():
        found: tuple[Any, Any] = unflatten(form, [short(leaf) for leaf in leaves])
    return found
