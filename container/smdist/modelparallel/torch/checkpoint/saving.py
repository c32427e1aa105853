# SPDX-License-Identifier: Apache-2.0
"""Saving of a checkpoint: the implementation of `smp.save_checkpoint`."""

from __future__ import annotations

import io
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.manifest import Manifest
from smdist.modelparallel.torch.checkpoint.atomic_files import (
    METADATA,
    SUFFIX,
    check_tag,
    new_save,
    partial_folder,
    partial_tags,
    write_newest,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    failure_of,
    in_words,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_progress import CheckpointProgress
from smdist.modelparallel.torch.checkpoint.checkpoint_ranks import RankReplica, random_state
from smdist.modelparallel.torch.checkpoint.dcp_metadata import num_bytes_of
from smdist.modelparallel.torch.checkpoint.dcp_store import ShardWriter
from smdist.modelparallel.torch.checkpoint.find_checkpoint import MODEL, RECORD, USER_CONTENT
from smdist.modelparallel.torch.checkpoint.full_checkpoint import write_full
from smdist.modelparallel.torch.checkpoint.local_values import (
    LocalValues,
    check_complete,
    local_values_of,
)
from smdist.modelparallel.torch.checkpoint.optimizer_values import state_of, values_of
from smdist.modelparallel.torch.checkpoint.script_objects import local, model_of, optimizer_of
from smdist.modelparallel.torch.checkpoint.team import Team, failure

_HINT = "Free space, or save to another path; older checkpoints are unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Contents of a checkpoint on this rank.

    Attributes:
        holding: The model and its values on this rank.
        values: Values of the model and the optimizer on this rank, by their keys in the checkpoint.
        record: Contents other than values: the manifest (a description of all values), random
            states, data positions, and the scheduler's state.
        user_content: The object that the user saves.
    """

    holding: LocalValues
    values: dict[str, Any] = field(repr=False)
    record: dict[str, Any] = field(repr=False)
    user_content: Any = field(repr=False, default=None)


@dataclass(frozen=True, slots=True)
class Saving:
    """Request to save a checkpoint, with the arguments of `smp.save_checkpoint`."""

    path: Path
    tag: object
    partial: bool
    model: nn.Module | None
    optimizer: Any
    user_content: Any
    translate_if_full: bool
    num_kept: int | None
    scheduler: Any
    data: Any

    def run(self) -> None:
        """Write the checkpoint; all ranks have to call it."""
        faults = _faults(self.tag, self.partial, self.translate_if_full, self.num_kept)
        raise_all(faults)
        tag, team, model = check_tag(self.tag), Team.here(), model_of(self.model)
        content = self._content(model, team)
        progress = CheckpointProgress(f"checkpoint {tag!r} to {self.path}", prints=team.is_first)
        if self.partial:
            num_bytes = num_bytes_of(_write(self.path, tag, content, team, progress))
        else:
            extra = {RECORD: content.record, USER_CONTENT: self.user_content}
            everything = {**content.values, **extra}
            num_bytes = write_full(self.path, tag, everything, content.holding, team)
        _announce(self.path, tag, team)
        if self.partial:
            _prune(self.path, self.num_kept, team)
        progress.close(num_bytes)

    def _content(self, model: nn.Module, team: Team) -> Content:
        holding, state = local_values_of(model), None
        check_complete(holding, team)
        is_mine = holding.is_cut or holding.split is None or team.is_first
        place = RankReplica.of(holding.split, team)
        values = _values(holding, place) if is_mine else {}
        optimizer = optimizer_of(self.optimizer, model)
        if optimizer is not None:
            inner, names = local(optimizer, holding), holding.names()
            state = state_of(inner, names, team)
            values |= values_of(inner, names) if is_mine else {}
        manifest = Manifest(
            model=holding.title,
            entries=holding.entries,
            state=state,
            layout=place.layout,
            run=place.run,
        )
        record = {"manifest": manifest.document(), **self._positions(place, team)}
        content = self.user_content
        return Content(holding=holding, values=values, record=record, user_content=content)

    def _positions(self, place: RankReplica, team: Team) -> dict[str, Any]:
        """Return the states of all ranks' random generators, of the data and of the scheduler.

        Args:
            place: This rank, with the number of its replica.
            team: All ranks; each of them must call this method.
        """
        hint = "Pass scheduler= and data= objects with a method state_dict()"
        what = f"checkpoint {self.tag!r} cannot be made"

        def states() -> tuple[Any, Any]:
            given = (self.scheduler, self.data)
            scheduler, data = (None if each is None else each.state_dict() for each in given)
            return scheduler, data

        scheduler, data = team.do(what, states, hint=hint)
        positions = team.gather((place.replica, data))
        return {
            "random": team.gather(random_state()),
            "data": None if self.data is None else positions,
            "num_replicas": place.num_replicas,
            "scheduler": scheduler,
        }


def _values(holding: LocalValues, place: RankReplica) -> dict[str, Any]:
    """Return the values of the model that this rank saves, by their keys in the checkpoint.

    Buffers may differ between replicas; only buffers of the first replica are saved.

    Args:
        holding: The model and its values on this rank.
        place: This rank, with the number of its replica.
    """
    parameters = holding.parameters()
    return {
        f"{MODEL}{name}": value
        for name, value in holding.values.items()
        if not place.replica or name in parameters or isinstance(value, DTensor)
    }


def _faults(tag: object, partial: object, translate: object, kept: object) -> Iterator[OptionError]:
    for name, value in (("partial", partial), ("translate_if_full", translate)):
        if not isinstance(value, bool):
            yield OptionError(
                f"{name} is {value!r}", "it has to be a bool", "Pass True or False", about=name
            )
    is_count = isinstance(kept, int) and not isinstance(kept, bool) and kept >= 1
    if kept is not None and not is_count:
        yield OptionError(
            f"num_kept_partial_checkpoints is {kept!r}",
            "it has to be the number of checkpoints to keep, with the one that is being saved",
            "Pass an integer of 1 or more, or None to keep all",
            about="num_kept_partial_checkpoints",
        )
    try:
        check_tag(tag)
    except OptionError as error:
        yield error


def _write(
    path: Path, tag: str, content: Content, team: Team, progress: CheckpointProgress
) -> Metadata:
    folder = partial_folder(path, tag)
    what = f"checkpoint {tag!r} cannot be written to {str(path)!r}"
    team.do(what, lambda: folder.mkdir(parents=True, exist_ok=True), hint=_HINT)
    save = team.share(new_save())
    values = dict(content.values)
    if team.is_first:
        values |= {RECORD: content.record, USER_CONTENT: content.user_content}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            metadata: Metadata = save_distributed(
                values,
                storage_writer=ShardWriter(folder, save, progress),
                planner=_Planner(flatten_state_dict=False, flatten_sharded_tensors=False),
            )
    except CheckpointException as failed:
        _remove(folder, lambda name: name.startswith(save))
        raise _save_error(what, failed, team) from None
    except BaseException:
        _remove(folder, lambda name: name.startswith(f"{save}_{team.rank}_"))
        raise
    _remove(folder, lambda name: not name.startswith(save))
    return metadata


class _Planner(DefaultSavePlanner):
    """Planner of `torch.distributed.checkpoint` for saving.

    If an object cannot be pickled, the planner raises an error with the object's name.
    """

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """Return the value to write for an item: a tensor, or the bytes of a pickled object.

        Raises:
            CheckpointError: The object cannot be pickled.
        """
        try:
            return super().resolve_data(write_item)
        except Exception as error:
            raise CheckpointError(
                f"{write_item.index.fqn} cannot be pickled",
                in_words(error),
                "Leave it out of the checkpoint",
                about=write_item.index.fqn,
                kind="not_picklable",
            ) from error


def _save_error(what: str, failed: CheckpointException, team: Team) -> BaseException:
    """Return the error to raise after a failed save.

    If this rank was interrupted (KeyboardInterrupt, SystemExit), the result is this exception.
    Otherwise the result is an error that lists the errors of all ranks.

    Args:
        what: First words of the error, such as "checkpoint 'a' cannot be written".
        failed: PyTorch's error, with the errors of the ranks.
        team: All ranks.
    """
    errors = {rank: each[0] for rank, each in failed.failures.items()}
    mine = errors.get(team.rank)
    if isinstance(mine, (KeyboardInterrupt, SystemExit)):
        return mine
    return failure(what, {rank: failure_of(error) for rank, error in errors.items()}, _HINT)


def _remove(folder: Path, is_unwanted: Any) -> None:
    """Remove files with values from the folder of a partial checkpoint.

    Args:
        folder: Folder of the checkpoint.
        is_unwanted: Function that gets a file name, and returns True to remove this file.
    """
    for each in folder.glob(f"*{SUFFIX}"):
        if is_unwanted(each.name):
            each.unlink(missing_ok=True)


def _announce(path: Path, tag: str, team: Team) -> None:
    what = f"checkpoint {tag!r} is written, but {str(path / 'newest')!r} cannot be written"
    team.do_first(what, lambda: write_newest(path, tag), hint=f"Load it with tag={tag!r}")


def _prune(path: Path, num_kept: int | None, team: Team) -> None:
    """Remove older checkpoints and files of crashed saves; each host removes its own files.

    Args:
        path: Folder of checkpoints.
        num_kept: Number of checkpoints to keep; None removes nothing.
        team: All ranks, which have to call this.
    """
    if num_kept is None:
        return
    what = f"old checkpoints in {str(path)!r} cannot be listed"
    tags = team.do_first(what, lambda: _unwanted(path, num_kept), hint="Remove them by hand")
    for tag in tags:
        folder = partial_folder(path, tag)
        # metadata goes first: without it, a half-removed checkpoint counts as incomplete
        (folder / METADATA).unlink(missing_ok=True)
    team.gather(None)
    for tag in tags:
        shutil.rmtree(partial_folder(path, tag), ignore_errors=True)


def _unwanted(path: Path, num_kept: int) -> list[str]:
    """Return the tags of checkpoints to remove: old ones, and those of crashed saves.

    Rank 0 first writes a file into the folder of a checkpoint, and the metadata at the end. So a
    folder that has this file and no metadata was left by a crashed save.

    Args:
        path: Folder of checkpoints.
        num_kept: Number of checkpoints to keep.
    """
    old = partial_tags(path)[num_kept:]
    folders = {each.parent for each in path.glob(f"{partial_folder(Path(), '*')}/*_0_0{SUFFIX}")}
    half = [each for each in folders if not (each / METADATA).exists()]
    ending = partial_folder(Path(), "").name
    return [*old, *(each.name.removesuffix(ending) for each in half)]
