# SPDX-License-Identifier: Apache-2.0
"""What this rank holds of a model, under the names of the whole model.

A split model lies in stages, one or several on a rank; a plain one is its own single piece. Both
have the same names, and that is all that a checkpoint knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.manifest import Entry
from smdist.modelparallel.torch.checkpoint.errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.team import Team


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A model as a rank has it.

    Attributes:
        title: Class of the model.
        entries: Everything that it consists of, on whatever rank.
        first: The first name of every name.
        values: What is here, by first name; tensors share memory with the model's.
        pieces: The modules here.
        whole: The whole model, without values where it was cut.
        split: The split model; None for a plain one.
    """

    title: str
    entries: tuple[Entry, ...]
    first: Mapping[str, str]
    values: Mapping[str, Any] = field(repr=False)
    pieces: tuple[nn.Module, ...] = field(repr=False)
    whole: Any = field(repr=False, default=None)
    split: Any = field(repr=False, default=None)

    @property
    def is_cut(self) -> bool:
        """Whether stages hold it."""
        return self.split is not None and self.split.is_cut

    def names(self) -> dict[int, str]:
        """First names of parameters by identity."""
        return {
            id(parameter): self.first.get(name, name)
            for piece in self.pieces
            for name, parameter in piece.named_parameters(remove_duplicate=False)
        }

    def parameters(self) -> dict[str, nn.Parameter]:
        """Parameters that are here by first name."""
        return {
            self.first.get(name, name): parameter
            for piece in self.pieces
            for name, parameter in piece.named_parameters(remove_duplicate=False)
        }

    def load(self, values: Mapping[str, Any]) -> None:
        """Copy values in; names that are not there keep what they have."""
        for piece in self.pieces:
            keys = {key: self.first.get(key, key) for key in piece.state_dict()}
            own = {key: values[name] for key, name in keys.items() if name in values}
            piece.load_state_dict(own, strict=False)


def hold(model: nn.Module) -> Holding:
    """Look at a model: a plain module, or one that `smp.parallelize` made.

    Raises:
        OptionError: It is no module.
    """
    require(
        isinstance(model, nn.Module),
        what=f"model is a {type(model).__name__}",
        why="a checkpoint is of a module",
        mend="Pass what smp.parallelize or smp.DistributedModel returned, or a plain module",
    )
    split: Any = model if is_split(model) else None
    whole = _whole(model)
    pieces = tuple(split.stages.values()) if split is not None and split.is_cut else (whole,)
    entries = _entries(whole)
    first = {name: each.name for each in entries for name in (each.name, *each.aliases)}
    return Holding(
        title=type(whole).__name__,
        entries=entries,
        first=first,
        values=_values(pieces, first),
        pieces=pieces,
        whole=whole,
        split=split,
    )


def check_complete(holding: Holding, team: Team) -> None:
    """Refuse to leave something out.

    Raises:
        CheckpointError: Nobody holds it, or it has no values.
    """
    here = list(holding.values)
    held = {name for names in team.gather(here) for name in names}
    lost = [entry.name for entry in holding.entries if entry.name not in held]
    if lost:
        raise CheckpointError(
            f"{', '.join(lost[:8])}: on none of the ranks",
            "they left memory when the model was split, and a checkpoint is of all of it",
            "Report it: what no stage uses stays with the first one",
        )
    is_meta = [n for n, value in holding.values.items() if getattr(value, "is_meta", False)]
    if any(team.gather(bool(is_meta))):
        raise CheckpointError(
            f"{', '.join(is_meta[:8]) or 'parameters of another rank'}: without values",
            "they are on the meta device",
            "Give the model values first: run a step, or load a checkpoint",
        )


def is_split(model: nn.Module) -> bool:
    """Whether `smp.parallelize` made it."""
    return hasattr(type(model), "when_cut")


def _whole(model: Any) -> nn.Module:
    """The whole model: with its values before it is cut, without them after it."""
    if is_split(model):
        found: nn.Module = model.skeleton if model.is_cut else model.module
        return found
    while hasattr(model, "_orig_mod") or type(model).__name__ == "DistributedDataParallel":
        model = model._orig_mod if hasattr(model, "_orig_mod") else model.module
    assert isinstance(model, nn.Module)
    return model


def _entries(whole: nn.Module) -> tuple[Entry, ...]:
    state = whole.state_dict(keep_vars=True)
    names: dict[Any, list[str]] = {}
    for name, value in state.items():
        key = id(value) if isinstance(value, Tensor) else name
        names.setdefault(key, []).append(name)
    return tuple(_entry(state[own[0]], own) for own in names.values())


def _entry(value: Any, names: list[str]) -> Entry:
    is_tensor = isinstance(value, Tensor)
    return Entry(
        name=names[0],
        aliases=tuple(names[1:]),
        shape=tuple(value.shape) if is_tensor else None,
        dtype=str(value.dtype).removeprefix("torch.") if is_tensor else "",
    )


def _values(pieces: tuple[nn.Module, ...], first: Mapping[str, str]) -> dict[str, Any]:
    return {
        first.get(key, key): value for piece in pieces for key, value in piece.state_dict().items()
    }


def unwrapped(optimizer: Any) -> Any:
    """PyTorch's optimizer inside SMP's.

    Raises:
        OptionError: There is none.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    if not (hasattr(inner, "param_groups") and hasattr(inner, "state")):
        raise OptionError(
            f"optimizer is a {type(optimizer).__name__}",
            "it has no param_groups and no state",
            "Pass a torch.optim.Optimizer, or smp.DistributedOptimizer around one",
        )
    return inner
