# SPDX-License-Identifier: Apache-2.0
"""Goes on from a checkpoint: what `smp.resume_from_checkpoint` does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.torch.checkpoint.chance import set_random_state
from smdist.modelparallel.torch.checkpoint.errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.full import Translate, find_full
from smdist.modelparallel.torch.checkpoint.holding import is_split
from smdist.modelparallel.torch.checkpoint.loading import Loading
from smdist.modelparallel.torch.checkpoint.place import Place
from smdist.modelparallel.torch.checkpoint.script import model_of, optimizer_of
from smdist.modelparallel.torch.checkpoint.sources import Source, find_partial
from smdist.modelparallel.torch.checkpoint.team import Team


@dataclass(frozen=True, slots=True)
class Resuming:
    """A checkpoint that is to be loaded; attributes are those of `smp.resume_from_checkpoint`."""

    path: Path
    tag: object
    partial: bool
    strict: bool
    load_optimizer: bool
    load_sharded_optimizer_state: bool
    translate_function: Translate | None
    model: nn.Module | None
    optimizer: Any
    scheduler: Any
    data: Any

    def run(self) -> Any:
        """Find it, compare it, and load it at once or when the model is cut; collective."""
        raise_all(_faults(self))
        team, model = Team.here(), model_of(self.model)
        source = self._source(team)
        optimizer = self._wanted(model)
        loading = Loading(source=source, model=model, optimizer=optimizer, strict=self.strict)
        loading.check()
        self._go_on(source, model, team)
        split: Any = model if is_split(model) else None
        if split is None:
            loading.run()
        else:
            split._state.is_loaded = True  # a model without values gets them here
            split.when_cut(loading.run)
        return source.user_content

    def _source(self, team: Team) -> Source:
        if self.partial:
            return find_partial(self.path, self.tag, team)
        return find_full(self.path, self.tag, self.translate_function, team)

    def _wanted(self, model: nn.Module) -> Any:
        """The optimizer, if its state is wanted."""
        skips = not self.load_sharded_optimizer_state and _is_sharded(model)
        return None if skips or not self.load_optimizer else optimizer_of(self.optimizer, model)

    def _go_on(self, source: Source, model: nn.Module, team: Team) -> None:
        """Random state, scheduler and data continue."""
        place = Place.of(model if is_split(model) else None, team)
        record, manifest = source.record, source.manifest

        def restore() -> None:
            raise_all(self._unsaved(source))
            if self.scheduler is not None and record["scheduler"] is not None:
                self.scheduler.load_state_dict(record["scheduler"])
            if self.data is not None and record["data"] is not None:
                position = place.data_of(record["data"], record["num_replicas"])
                self.data.load_state_dict(position)

        what = f"{source.title} cannot be loaded"
        team.do(what, restore, mend="Pass the objects that were saved")
        set_random_state(place.random_of(record["random"], manifest.layout))

    def _unsaved(self, source: Source) -> Iterator[OptionError]:
        given = {"scheduler": self.scheduler, "data": self.data}
        for name, value in given.items():
            if self.strict and value is not None and source.record[name] is None:
                yield CheckpointError(
                    f"{source.title} has no {name}",
                    f"it was saved without {name}=",
                    f"Pass {name}=None, or strict=False",
                )


def _is_sharded(model: nn.Module) -> bool:
    """Whether replicas share its parameters out, or will when it is cut."""
    if is_split(model):
        split: Any = model
        return bool(split.is_sharded)
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _faults(asked: Resuming) -> Iterator[OptionError]:
    for name in ("partial", "strict", "load_optimizer", "load_sharded_optimizer_state"):
        value = getattr(asked, name)
        if not isinstance(value, bool):
            yield OptionError(f"{name} is {value!r}", "it is a switch", "Pass True or False")
    if asked.translate_function is not None and asked.partial:
        yield OptionError(
            "translate_function is for files of a whole model",
            "a partial checkpoint is loaded by names, piece by piece",
            "Pass partial=False, or leave it out",
        )
