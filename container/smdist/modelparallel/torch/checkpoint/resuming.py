# SPDX-License-Identifier: Apache-2.0
"""Loading of a checkpoint to continue training: implements `smp.resume_from_checkpoint`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    SkippedCheckpoint,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_ranks import RankReplica, set_random_state
from smdist.modelparallel.torch.checkpoint.find_checkpoint import CheckpointSource, find_partial
from smdist.modelparallel.torch.checkpoint.full_checkpoint import Translate, find_full
from smdist.modelparallel.torch.checkpoint.loading import Loading
from smdist.modelparallel.torch.checkpoint.local_values import is_split
from smdist.modelparallel.torch.checkpoint.script_objects import model_of, optimizer_of
from smdist.modelparallel.torch.checkpoint.team import Team


@dataclass(frozen=True, slots=True)
class Resuming:
    """Request to load a checkpoint, with the arguments of `smp.resume_from_checkpoint`."""

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
    allow_pickle: bool

    def run(self) -> Any:
        """Find the checkpoint, check that it fits, load it, and return the object the user saved.

        Values are loaded now, or when the model is split. All ranks have to call it.
        """
        raise_all(_faults(self))
        team, model = Team.here(), model_of(self.model)
        corrupt: dict[str, SkippedCheckpoint] = {}
        while True:
            source = self._source(team, corrupt)
            try:
                self._load(source, model, team)
            except CheckpointError as error:
                if self.tag is not None or not self.partial or error.kind != "corrupt":
                    raise
                why = f"{error.what}: {error.why}"
                corrupt[source.number] = SkippedCheckpoint(source.tag, "corrupt", error.files, why)
            else:
                return source.user_content

    def _load(self, source: CheckpointSource, model: nn.Module, team: Team) -> None:
        """Load a checkpoint, or have it loaded when the model is split.

        Raises:
            CheckpointError: Values are corrupt; the model is unchanged.
        """
        loading = Loading(
            source=source,
            model=model,
            optimizer=self._wanted(model),
            strict=self.strict,
            allow_pickle=self.allow_pickle,
        )
        loading.check()
        if is_split(model) and not model.is_cut:
            self._restore_positions(source, model, team)
            model._state.is_loaded = True  # the checkpoint gives values to a model without them
            model.when_cut(loading.run)
            return
        values = loading.read()
        self._restore_positions(source, model, team)
        loading.place(values)

    def _source(self, team: Team, corrupt: Mapping[str, SkippedCheckpoint]) -> CheckpointSource:
        pickles = self.allow_pickle
        if self.partial:
            return find_partial(self.path, self.tag, team, allow_pickle=pickles, corrupt=corrupt)
        return find_full(self.path, self.tag, self.translate_function, team, allow_pickle=pickles)

    def _wanted(self, model: nn.Module) -> Any:
        """Return the optimizer to load into; None if no optimizer state is to be loaded.

        Args:
            model: Model to load into. If the user passed no optimizer, the result is the
                smp.DistributedOptimizer of this model.
        """
        skips = not self.load_sharded_optimizer_state and _is_sharded(model)
        return None if skips or not self.load_optimizer else optimizer_of(self.optimizer, model)

    def _restore_positions(self, source: CheckpointSource, model: nn.Module, team: Team) -> None:
        """Restore the random state, the scheduler and the position in the data on this rank.

        Args:
            source: The checkpoint that contains these states.
            model: Model to load into.
            team: All ranks, which have to call this.
        """
        place = RankReplica.of(model if is_split(model) else None, team)
        record, manifest = source.record, source.manifest

        def restore() -> None:
            raise_all(self._unsaved(source))
            if self.scheduler is not None and record["scheduler"] is not None:
                self.scheduler.load_state_dict(record["scheduler"])
            if self.data is not None and record["data"] is not None:
                position = place.data_of(record["data"], record["num_replicas"])
                self.data.load_state_dict(position)

        what = f"{source.title} cannot be loaded"
        team.do(what, restore, hint="Pass objects like those that were saved")
        set_random_state(place.random_of(record["random"], manifest.layout))

    def _unsaved(self, source: CheckpointSource) -> Iterator[OptionError]:
        given = {"scheduler": self.scheduler, "data": self.data}
        for name, value in given.items():
            if self.strict and value is not None and source.record[name] is None:
                yield CheckpointError(
                    f"{source.title} has no state of the {name}",
                    f"it was saved without {name}=",
                    f"Pass {name}=None, or strict=False",
                    about=name,
                )


def _is_sharded(model: nn.Module) -> bool:
    """Return True if the model is sharded over replicas, or will be when it is split."""
    if is_split(model):
        split: Any = model
        return bool(split.is_sharded)
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _faults(request: Resuming) -> Iterator[OptionError]:
    names = ("partial", "strict", "load_optimizer", "load_sharded_optimizer_state", "allow_pickle")
    for name in names:
        value = getattr(request, name)
        if not isinstance(value, bool):
            yield OptionError(
                f"{name} is {value!r}", "it has to be a bool", "Pass True or False", about=name
            )
    if request.translate_function is not None and request.partial:
        yield OptionError(
            "translate_function is given with partial=True",
            "it translates the state dict of a whole model, which only partial=False loads",
            "Pass partial=False, or leave translate_function out",
            about="translate_function",
        )
