# SPDX-License-Identifier: Apache-2.0
"""Saving of a checkpoint: the implementation of `smp.save_checkpoint`."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.manifest import Manifest
from smdist.modelparallel.torch.checkpoint.atomic_files import (
    check_tag,
    partial_folder,
    remove_temporary_files,
    write_newest,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import failure_of
from smdist.modelparallel.torch.checkpoint.checkpoint_progress import CheckpointProgress
from smdist.modelparallel.torch.checkpoint.checkpoint_ranks import RankReplica, random_state
from smdist.modelparallel.torch.checkpoint.dcp_metadata import num_bytes_of
from smdist.modelparallel.torch.checkpoint.dcp_store import ShardWriter
from smdist.modelparallel.torch.checkpoint.find_checkpoint import MODEL
from smdist.modelparallel.torch.checkpoint.full_checkpoint import write_full
from smdist.modelparallel.torch.checkpoint.full_files import RECORD, USER_CONTENT
from smdist.modelparallel.torch.checkpoint.local_values import (
    LocalValues,
    check_complete,
    local_values_of,
)
from smdist.modelparallel.torch.checkpoint.optimizer_values import state_of, values_of
from smdist.modelparallel.torch.checkpoint.pruning import (
    prune,
    remove_older_saves,
    remove_save,
)
from smdist.modelparallel.torch.checkpoint.safe_content import SavedObject, pack
from smdist.modelparallel.torch.checkpoint.save_numbers import last_number, next_number
from smdist.modelparallel.torch.checkpoint.script_objects import (
    local,
    loss_scale_of,
    model_of,
    optimizer_of,
)
from smdist.modelparallel.torch.checkpoint.team import Team, failure
from smdist.modelparallel.torch.checkpoint.tensor_parts import writable
from smdist.modelparallel.torch.checkpoint.writer_lock import WriterLock

_HINT = "Free space, or save to another path; older checkpoints are unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Contents of a checkpoint on this rank.

    Attributes:
        holding: The model and its values on this rank.
        values: Values of the model and the optimizer on this rank, by their keys in the checkpoint.
        objects: Two objects on rank 0, packed; none on other ranks. RECORD has contents other than
            values: the manifest (a description of all values), random states, data positions, and
            the states of the scheduler and the loss scale. USER_CONTENT is the object that the
            user saves.
    """

    holding: LocalValues
    values: dict[str, Any] = field(repr=False)
    objects: dict[str, SavedObject] = field(repr=False)


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
    allow_pickle: bool

    def run(self) -> None:
        """Write the checkpoint; all ranks have to call it."""
        faults = _faults(self)
        raise_all(faults)
        tag, team, model = check_tag(self.tag), Team.here(), model_of(self.model)
        content = self._content(model, team)
        with _locked(self.path, tag, team) as crashed:
            self._save(tag, content, team, crashed=crashed)

    def _save(self, tag: str, content: Content, team: Team, *, crashed: bool) -> None:
        """Write the checkpoint while no other writer is at work.

        Args:
            tag: Name of the checkpoint.
            content: Contents on this rank.
            team: All ranks.
            crashed: True if unfinished saves in the folder are those of crashed writers.
        """
        progress = CheckpointProgress(f"checkpoint {tag!r} to {self.path}", prints=team.is_first)
        if self.partial:
            metadata = _write(self.path, tag, content, team, progress, crashed=crashed)
            num_bytes = num_bytes_of(metadata)
        else:
            everything = {**content.values, **content.objects}
            num_bytes = write_full(self.path, tag, everything, content.holding, team)
        _announce(self.path, tag, team)
        if self.partial and self.num_kept is not None:
            prune(self.path, tag, self.num_kept, team, crashed=crashed)
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
        scale = loss_scale_of(optimizer)
        record = {"manifest": manifest.document(), **self._positions(place, team)}
        if scale is not None:
            record["loss_scale"] = scale.state_dict()
        return self._packed(holding, values, record, team)

    def _packed(
        self, holding: LocalValues, values: dict[str, Any], record: dict[str, Any], team: Team
    ) -> Content:
        """Return the contents of the checkpoint, with all objects but tensors packed.

        Args:
            holding: The model and its values on this rank.
            values: Values on this rank, by their keys in the checkpoint.
            record: Contents other than values.
            team: All ranks; each of them must call this method.

        Raises:
            OptionError: An object cannot be pickled, or its class is refused without allow_pickle.
        """

        objects: dict[str, SavedObject] = {}

        def pack_objects() -> None:
            for key, value in ((RECORD, record), (USER_CONTENT, self.user_content)):
                objects[key] = self._pack(key, value)

        def packed() -> dict[str, Any]:
            return {
                key: value if isinstance(value, Tensor) else self._pack(key, value)
                for key, value in values.items()
            }

        what = f"checkpoint {self.tag!r} cannot be made"
        hint = "Leave these objects out, or save their contents as plain data"
        team.do_first(what, pack_objects, hint=hint)
        own = team.do(what, packed, hint=hint)
        return Content(holding=holding, values=own, objects=objects)

    def _pack(self, key: str, value: Any) -> SavedObject:
        return pack(key, value, allow_pickle=self.allow_pickle)

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


def _faults(request: Saving) -> Iterator[OptionError]:
    kept = request.num_kept
    for name in ("partial", "translate_if_full", "allow_pickle"):
        value = getattr(request, name)
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
        check_tag(request.tag)
    except OptionError as error:
        yield error


@contextmanager
def _locked(path: Path, tag: str, team: Team) -> Iterator[bool]:
    """Keep other writers out of a folder of checkpoints; all ranks run this block.

    Args:
        path: Folder of checkpoints, which is created if needed.
        tag: Name of the checkpoint that is saved.
        team: All ranks. Rank 0 holds the lock.

    Yields:
        True if no other writer can be at work; False if the file system has no locks.

    Raises:
        CheckpointError: Another writer is at work, or the folder cannot be written to.
    """
    lock = WriterLock(path)
    what = f"checkpoint {tag!r} cannot be written to {str(path)!r}"
    try:
        team.do_first(what, lock.acquire, hint=_HINT)
        excludes = team.share(lock.excludes)
        if excludes and team.is_first:
            remove_temporary_files(path)
        yield excludes
    finally:
        lock.release()


def _write(
    path: Path,
    tag: str,
    content: Content,
    team: Team,
    progress: CheckpointProgress,
    *,
    crashed: bool,
) -> Metadata:
    folder = partial_folder(path, tag)
    what = f"checkpoint {tag!r} cannot be written to {str(path)!r}"
    team.do(what, lambda: folder.mkdir(parents=True, exist_ok=True), hint=_HINT)
    taken = team.gather(team.do(what, lambda: last_number(path), hint=_HINT))
    number = team.share(next_number(taken))
    writer = ShardWriter(folder, number, progress)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            metadata: Metadata = save_distributed(
                {**_writable(content.values), **content.objects},
                storage_writer=writer,
                planner=_Planner(flatten_state_dict=False, flatten_sharded_tensors=False),
            )
    except CheckpointException as failed:
        remove_save(folder, number)
        raise _save_error(what, failed, team) from None
    except BaseException:  # a lost rank, or an interruption of this one
        if not writer.has_values:  # otherwise the save may be complete: only rank 0 knows
            remove_save(folder, number, rank=team.rank)
        raise
    if crashed and team.is_first:
        remove_temporary_files(folder)
    remove_older_saves(folder, number, crashed=crashed)
    return metadata


def _writable(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as they are written: some parts of split tensors are gathered."""
    return {key: writable(value) for key, value in values.items()}


class _Planner(DefaultSavePlanner):
    """Planner of `torch.distributed.checkpoint` for saving, whose objects are packed already."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002  PyTorch's
        """Return the value to write for an item: a tensor, or the bytes of a packed object."""
        if isinstance(object, SavedObject):
            return io.BytesIO(object.data)
        return super().transform_object(write_item, object)


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


def _announce(path: Path, tag: str, team: Team) -> None:
    what = f"checkpoint {tag!r} is written, but {str(path / 'newest')!r} cannot be written"
    team.do_first(what, lambda: write_newest(path, tag), hint=f"Load it with tag={tag!r}")
