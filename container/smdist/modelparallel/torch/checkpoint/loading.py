# SPDX-License-Identifier: Apache-2.0
"""Puts what a checkpoint holds into a model and its optimizer.

Names, shapes and files are compared first, on all ranks. Values are read beside the model and
copied in when every rank has them: until then the model is as it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import raise_all
from smdist.modelparallel.core.manifest import Manifest, State, model_faults, state_faults
from smdist.modelparallel.torch.checkpoint.files import partial_folder
from smdist.modelparallel.torch.checkpoint.holding import Holding, hold, unwrapped
from smdist.modelparallel.torch.checkpoint.moments import (
    put,
    put_options,
    renamed,
    state_of,
    targets,
    trained,
)
from smdist.modelparallel.torch.checkpoint.progress import Progress
from smdist.modelparallel.torch.checkpoint.script import local
from smdist.modelparallel.torch.checkpoint.shards import fill
from smdist.modelparallel.torch.checkpoint.sources import MODEL, Source, read_values
from smdist.modelparallel.torch.checkpoint.team import Team

_MEND = "Copy the files again, or load an older tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What is to be loaded into what.

    Attributes:
        optimizer: None where its state is not wanted.
    """

    source: Source
    model: nn.Module
    optimizer: Any
    strict: bool

    def check(self) -> None:
        """Compare names and shapes, without reading values; collective.

        Raises:
            OptionError: The checkpoint is of something else; all faults at once.
        """
        team, holding = Team.here(), hold(self.model)
        saved = self.source.manifest
        here = Manifest(model=holding.title, entries=holding.entries)
        faults = list(model_faults(saved, here, strict=self.strict))
        if self.optimizer is not None:
            state = self._state_here(holding, team)
            faults += [] if saved.state is None and not self.strict else state_faults(saved, state)
        team.do(self._cannot, lambda: raise_all(faults), mend=_MEND)

    def run(self) -> None:
        """Read this rank's values, then put them where they belong; collective.

        Raises:
            CheckpointError: Some rank cannot read its own: no rank's model is changed.
        """
        team, holding = Team.here(), hold(self.model)
        saved = self.source.manifest
        keys = _keys(holding, saved)
        into = {key: _beside(holding.values[name]) for name, key in keys.items()}
        state, groups, parameters = saved.state, None, {}
        if self.optimizer is not None and state is not None:
            here = self._state_here(holding, team)
            groups = here.groups
            parameters = self._parameters(holding)
            into |= self._targets(parameters, state)
        found = team.do(self._cannot, lambda: self._read(into, team), mend=_MEND)

        def place() -> None:
            holding.load({name: found[key] for name, key in keys.items()})
            if groups is not None and state is not None:
                inner = unwrapped(self.optimizer)
                put(inner, parameters, state, found)
                put_options(inner, state, groups)

        team.do(self._cannot, place, mend="Load it again before you go on")
        if holding.split is not None and saved.run:
            holding.split.seed = saved.run["seed"]
            holding.split.step_number = saved.run["step"]

    @property
    def _cannot(self) -> str:
        return f"{self.source.title} cannot be loaded"

    def _state_here(self, holding: Holding, team: Team) -> State:
        state = state_of(local(self.optimizer, holding), holding.names(), team)
        return renamed(state, _saved_names(holding, self.source.manifest))

    def _parameters(self, holding: Holding) -> dict[str, nn.Parameter]:
        """Those of the optimizer that are here, by the names of the checkpoint."""
        names = _saved_names(holding, self.source.manifest)
        own = trained(unwrapped(self.optimizer), holding.names())
        return {names.get(name, name): parameter for name, parameter in own}

    def _targets(self, parameters: dict[str, nn.Parameter], state: State) -> dict[str, Any]:
        metadata = self.source.metadata
        return targets(parameters, state, self.source.values if metadata is None else metadata)

    def _read(self, into: dict[str, Any], team: Team) -> dict[str, Any]:
        source = self.source
        if source.metadata is None:
            return {key: fill(target, source.values[key]) for key, target in into.items()}
        progress = Progress(f"{source.title} to the model", is_told=team.is_first)
        folder = partial_folder(source.path, source.tag)
        return read_values(folder, source.metadata, into, progress)


def _keys(holding: Holding, saved: Manifest) -> dict[str, str]:
    """Where the checkpoint has what is here, by first name here."""
    names = _saved_names(holding, saved)
    return {here: f"{MODEL}{there}" for here, there in names.items() if here in holding.values}


def _saved_names(holding: Holding, saved: Manifest) -> dict[str, str]:
    pairs = ((each, saved.found_for(each)) for each in holding.entries)
    return {each.name: found.name for each, found in pairs if found is not None}


def _beside(value: Any) -> Any:
    """An empty tensor to read into: a shard where it is one, else on the CPU."""
    if isinstance(value, DTensor):
        return torch.empty_like(value)
    return torch.empty_like(value, device="cpu") if isinstance(value, Tensor) else None
