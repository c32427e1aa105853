# SPDX-License-Identifier: Apache-2.0
"""Loading of a checkpoint's values into a model and its optimizer.

Names, shapes and files are checked first, on all ranks. Values are read into separate memory, and
copied into the model when every rank has read its values; until then the model is unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from sagemaker_dist.errors import raise_all
from smdist.modelparallel.core.manifest import (
    Group,
    Manifest,
    OptimizerState,
    model_faults,
    state_faults,
)
from smdist.modelparallel.torch.checkpoint.atomic_files import partial_folder
from smdist.modelparallel.torch.checkpoint.checkpoint_progress import CheckpointProgress
from smdist.modelparallel.torch.checkpoint.find_checkpoint import (
    MODEL,
    CheckpointSource,
    read_values,
)
from smdist.modelparallel.torch.checkpoint.local_values import (
    LocalValues,
    local_values_of,
    unwrapped,
)
from smdist.modelparallel.torch.checkpoint.optimizer_values import (
    put,
    put_options,
    renamed,
    state_of,
    targets,
    trained,
)
from smdist.modelparallel.torch.checkpoint.script_objects import local, loss_scale_of
from smdist.modelparallel.torch.checkpoint.team import Team
from smdist.modelparallel.torch.checkpoint.tensor_parts import empty_like


def fill(target: Any, value: Any) -> Any:
    """Copy a tensor into an existing tensor, which may be a shard.

    Args:
        target: Tensor to fill. If it is sharded (a DTensor), this rank's part is copied.
        value: The whole tensor, or another object.

    Returns:
        `target`; if it is no tensor, `value`.
    """
    if not isinstance(target, Tensor):
        return value
    if not isinstance(target, DTensor):
        return target.copy_(value)
    sizes, offsets = compute_local_shape_and_global_offset(
        target.shape, target.device_mesh, target.placements
    )
    ranges = zip(offsets, sizes, strict=True)
    part = value[tuple(slice(start, start + size) for start, size in ranges)]
    target.to_local().copy_(part)
    return target


_HINT = "Copy the files again, or load an older tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadValues:
    """Values of a checkpoint that this rank has read, and where they belong.

    Attributes:
        holding: The model and its values on this rank.
        keys: Keys of the model's values in the checkpoint, by name in the model.
        values: Values that were read, by key in the checkpoint.
        groups: Parameter groups of the optimizer; None if its state is not loaded.
        parameters: Parameters of the optimizer on this rank, by their names in the checkpoint.
    """

    holding: LocalValues
    keys: Mapping[str, str]
    values: Mapping[str, Any] = field(repr=False)
    groups: tuple[Group, ...] | None
    parameters: Mapping[str, nn.Parameter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Loading of a checkpoint into a model and its optimizer.

    Attributes:
        source: The checkpoint.
        model: The model.
        optimizer: The optimizer; None if its state is not loaded.
        strict: True if model and checkpoint must have the same names.
        allow_pickle: True reads objects of all classes, which can run code from the files.
    """

    source: CheckpointSource
    model: nn.Module
    optimizer: Any
    strict: bool
    allow_pickle: bool

    def check(self) -> None:
        """Check that names and shapes fit, without reading values; all ranks have to call it.

        Raises:
            OptionError: The checkpoint belongs to another model or optimizer; the error lists all
                differences.
        """
        team, holding = Team.here(), local_values_of(self.model)
        saved = self.source.manifest
        here = Manifest(model=holding.title, entries=holding.entries)
        faults = list(model_faults(saved, here, strict=self.strict))
        if self.optimizer is not None:
            state = self._state_here(holding, team)
            faults += [] if saved.state is None and not self.strict else state_faults(saved, state)
        team.do(self._cannot, lambda: raise_all(faults), hint=_HINT)

    def run(self) -> None:
        """Read this rank's values, then copy them into the model and the optimizer.

        All ranks have to call it.

        Raises:
            CheckpointError: A rank cannot read its values; the model is unchanged on all ranks.
        """
        self.place(self.read())

    def read(self) -> ReadValues:
        """Read this rank's values into separate memory; all ranks have to call it.

        Raises:
            CheckpointError: A rank cannot read its values.
        """
        team, holding = Team.here(), local_values_of(self.model)
        saved = self.source.manifest
        keys = _keys(holding, saved)
        into = {key: empty_like(holding.values[name]) for name, key in keys.items()}
        state, groups, parameters = saved.state, None, {}
        if self.optimizer is not None and state is not None:
            groups = self._state_here(holding, team).groups
            parameters = self._parameters(holding)
            into |= self._targets(parameters, state)
        found = team.do(self._cannot, lambda: self._read(into, team), hint=_HINT)
        return ReadValues(
            holding=holding, keys=keys, values=found, groups=groups, parameters=parameters
        )

    def place(self, read: ReadValues) -> None:
        """Copy values into the model and the optimizer; all ranks have to call it.

        Args:
            read: The result of `read`.
        """
        team, holding, saved = Team.here(), read.holding, self.source.manifest

        def copy() -> None:
            holding.load({name: read.values[key] for name, key in read.keys.items()})
            if read.groups is not None and saved.state is not None:
                inner = unwrapped(self.optimizer)
                put(inner, read.parameters, saved.state, read.values)
                put_options(inner, saved.state, read.groups)
            scale, found = loss_scale_of(self.optimizer), self.source.record.get("loss_scale")
            if scale is not None and found is not None:
                scale.load_state_dict(found)

        team.do(self._cannot, copy, hint="Load it again before you continue")
        if holding.split is not None and saved.run:
            holding.split.seed = saved.run["seed"]
            holding.split.step_number = saved.run["step"]

    @property
    def _cannot(self) -> str:
        return f"{self.source.title} cannot be loaded"

    def _state_here(self, holding: LocalValues, team: Team) -> OptimizerState:
        state = state_of(local(self.optimizer, holding), holding.names(), team)
        return renamed(state, _saved_names(holding, self.source.manifest))

    def _parameters(self, holding: LocalValues) -> dict[str, nn.Parameter]:
        """Return the optimizer's parameters on this rank, by their names in the checkpoint."""
        names = _saved_names(holding, self.source.manifest)
        own = trained(unwrapped(self.optimizer), holding.names())
        return {names.get(name, name): parameter for name, parameter in own}

    def _targets(
        self, parameters: dict[str, nn.Parameter], state: OptimizerState
    ) -> dict[str, Any]:
        metadata = self.source.metadata
        stored = self.source.values if metadata is None else metadata
        dtypes = {each.name: each.dtype for each in self.source.manifest.entries}
        return targets(parameters, state, stored, dtypes)

    def _read(self, into: dict[str, Any], team: Team) -> dict[str, Any]:
        source = self.source
        if source.metadata is None:
            return {key: fill(target, source.values[key]) for key, target in into.items()}
        progress = CheckpointProgress(f"{source.title} to the model", prints=team.is_first)
        folder = partial_folder(source.path, source.tag)
        return read_values(folder, source.metadata, into, progress, allow_pickle=self.allow_pickle)


def _keys(holding: LocalValues, saved: Manifest) -> dict[str, str]:
    """Return the checkpoint's keys for this rank's values, by the names of the values.

    Args:
        holding: The model and its values on this rank.
        saved: Description of the checkpoint.
    """
    names = _saved_names(holding, saved)
    return {here: f"{MODEL}{there}" for here, there in names.items() if here in holding.values}


def _saved_names(holding: LocalValues, saved: Manifest) -> dict[str, str]:
    pairs = ((each, saved.found_for(each)) for each in holding.entries)
    return {each.name: found.name for each, found in pairs if found is not None}
