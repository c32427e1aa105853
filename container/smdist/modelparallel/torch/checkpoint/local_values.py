# SPDX-License-Identifier: Apache-2.0
"""Values of a model on this rank, under their names in the whole model.

A split model consists of stages, one or several on each rank; a plain model counts as one stage.
A value has the same name in a stage as in the whole model. A checkpoint stores values by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.manifest import ManifestEntry
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.team import Team
from smdist.modelparallel.torch.checkpoint.tensor_parts import exposed, part_for
from smdist.modelparallel.torch.parallel import Parallel
from smdist.modelparallel.torch.replicas.master_weights import MasterWeights
from smdist.modelparallel.torch.tensor_splits import whole_shape_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalValues:
    """Model with its values on this rank.

    A tied parameter has several names in the model. Its first name is the first one in the state
    dict of the whole model. Any other value has a single name, which is also its first name.

    Attributes:
        title: Class name of the model, shown in errors.
        entries: Names, shapes and types of all values of the model, on all ranks.
        first: First name of a value, by each of the value's names.
        values: Values on this rank, by first name; the tensors share memory with the model. Parts
            of split tensors are DTensors. Master weights take the place of parameters in 16 bits.
        pieces: Modules that contain these values: the stages on this rank, or the whole model if
            the model is not split.
        whole: The whole model; on the meta device if the model is split.
        split: The model, if smp.parallelize made it; None for a plain module.
    """

    title: str
    entries: tuple[ManifestEntry, ...]
    first: Mapping[str, str]
    values: Mapping[str, Any] = field(repr=False)
    pieces: tuple[nn.Module, ...] = field(repr=False)
    whole: Any = field(repr=False, default=None)
    split: Parallel | None = field(repr=False, default=None)

    @property
    def masters(self) -> MasterWeights | None:
        """Master weights of this rank; None if there are none."""
        return None if self.split is None else self.split.masters

    @property
    def is_cut(self) -> bool:
        """True if the model is split into stages already."""
        return self.split is not None and self.split.is_cut

    def names(self) -> dict[int, str]:
        """Return the name of each parameter on this rank, by the id of the parameter.

        A tied parameter has several names; the result has the first one in the state dict.
        """
        return {
            id(parameter): self.first.get(name, name)
            for piece in self.pieces
            for name, parameter in piece.named_parameters(remove_duplicate=False)
        }

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters on this rank, by name.

        A tied parameter has several names; the result has the first one in the state dict.
        """
        return {
            self.first.get(name, name): parameter
            for piece in self.pieces
            for name, parameter in piece.named_parameters(remove_duplicate=False)
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Copy values into the model on this rank; values that are not given stay unchanged.

        Args:
            values: New values, by name: for a tied parameter, by the first of its names in the
                state dict. Values that are not on this rank are ignored.
        """
        for piece in self.pieces:
            keys = {key: self.first.get(key, key) for key in piece.state_dict()}
            parameters = dict(piece.named_parameters(remove_duplicate=False))
            own = {
                key: part_for(values[name], parameters.get(key))
                for key, name in keys.items()
                if name in values
            }
            piece.load_state_dict(own, strict=False)
            for key, value in own.items():
                if self.masters is not None and key in parameters:
                    self.masters.load(parameters[key], value)


def local_values_of(model: nn.Module) -> LocalValues:
    """Return a model together with its parameters and buffers on this rank.

    Args:
        model: Model of `smp.parallelize` or `smp.DistributedModel`, or a plain module. A plain
            module may be compiled, or wrapped in DistributedDataParallel.

    Raises:
        OptionError: The model is no module.
    """
    require(
        isinstance(model, nn.Module),
        what=f"model is a {type(model).__name__}",
        why="it has to be a torch.nn.Module",
        hint="Pass the result of smp.parallelize or smp.DistributedModel, or a plain module",
        about="model",
    )
    split = model if is_split(model) else None
    whole = _whole(model)
    pieces = tuple(split.stages.values()) if split is not None and split.is_cut else (whole,)
    masters = None if split is None else split.masters
    entries = _entries(whole, None if masters is None else masters.dtype)
    first = {name: each.name for each in entries for name in (each.name, *each.aliases)}
    return LocalValues(
        title=type(whole).__name__,
        entries=entries,
        first=first,
        values=_values(pieces, first, masters),
        pieces=pieces,
        whole=whole,
        split=split,
    )


def check_complete(holding: LocalValues, team: Team) -> None:
    """Check that the ranks of a team together have all values of a model.

    All ranks of the team must call this function.

    Args:
        holding: The model and its values on this rank.
        team: The ranks.

    Raises:
        CheckpointError: A value of the model is on none of the ranks, or is on the meta device.
    """
    here = list(holding.values)
    held = {name for names in team.gather(here) for name in names}
    lost = [entry.name for entry in holding.entries if entry.name not in held]
    if lost:
        raise CheckpointError(
            f"no rank has the values of {', '.join(lost[:8])}",
            "their memory was freed when the model was split, which should not happen",
            "Report this as a bug of smdist",
        )
    is_meta = [n for n, value in holding.values.items() if getattr(value, "is_meta", False)]
    if any(team.gather(bool(is_meta))):
        raise CheckpointError(
            f"{', '.join(is_meta[:8]) or 'parameters of another rank'} have no values",
            "they are on the meta device",
            "Run a step or load a checkpoint first, which gives values to the model",
            kind="no_values",
        )


def is_split(model: object) -> TypeGuard[Parallel]:
    """Return True if `smp.parallelize` or `smp.DistributedModel` made the model."""
    return isinstance(model, Parallel)


def _whole(model: Any) -> nn.Module:
    """Return the whole model without wrappers; if it was split, a copy on the meta device."""
    if is_split(model):
        found: nn.Module = model.skeleton if model.is_cut else model.module
        return found
    while hasattr(model, "_orig_mod") or type(model).__name__ == "DistributedDataParallel":
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    assert isinstance(model, nn.Module)
    return model


def _entries(whole: nn.Module, half: torch.dtype | None) -> tuple[ManifestEntry, ...]:
    """Return the names, shapes and types of all values of a model.

    Args:
        whole: The whole model.
        half: Dtype of parameters that have master weights, which are saved in their place; None if
            there are none.
    """
    state = whole.state_dict(keep_vars=True)
    names: dict[Any, list[str]] = {}
    for name, value in state.items():
        key = id(value) if isinstance(value, Tensor) else name
        names.setdefault(key, []).append(name)
    return tuple(_entry(state[own[0]], own, half) for own in names.values())


def _entry(value: Any, names: list[str], half: torch.dtype | None) -> ManifestEntry:
    is_tensor = isinstance(value, Tensor)
    dtype = value.dtype if is_tensor else ""
    if dtype is half and isinstance(value, nn.Parameter) and value.requires_grad:
        dtype = torch.float32
    return ManifestEntry(
        name=names[0],
        aliases=tuple(names[1:]),
        shape=tuple(whole_shape_of(value)) if is_tensor else None,
        dtype=str(dtype).removeprefix("torch."),
    )


def _values(
    pieces: tuple[nn.Module, ...], first: Mapping[str, str], masters: MasterWeights | None
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for piece in pieces:
        parameters = dict(piece.named_parameters(remove_duplicate=False))
        for key, value in piece.state_dict().items():
            parameter = parameters.get(key)
            master = None if masters is None else masters.of(parameter)
            kept = value if master is None else master
            found[first.get(key, key)] = exposed(kept, parameter)
    return found


def unwrapped(optimizer: Any) -> Any:
    """Return the PyTorch optimizer inside a smp.DistributedOptimizer, or `optimizer` itself.

    Raises:
        OptionError: The object is no optimizer.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    if not (hasattr(inner, "param_groups") and hasattr(inner, "state")):
        raise OptionError(
            f"optimizer is a {type(optimizer).__name__}",
            "it has no param_groups and no state",
            "Pass a torch.optim.Optimizer, or smp.DistributedOptimizer around one",
            about="optimizer",
        )
    return inner
