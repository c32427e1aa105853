# SPDX-License-Identifier: Apache-2.0
"""Export of the whole model to safetensors files with Hugging Face's file names: `smp.export`.

    folder/
      config.json                            the model's `config`, if the model has one
      model-00001-of-00002.safetensors       tensors of stage 0
      model-00002-of-00002.safetensors       tensors of stage 1
      model.safetensors.index.json           name of the file of each tensor; written last

`transformers` can load that folder. Each rank writes the tensors of its stages, one after another,
so no rank ever has the whole model in memory. A tensor that several ranks have is written by the
first of these ranks. Tied parameters are written once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

from torch import Tensor, nn

from sagemaker_dist.errors import raise_all, require
from smdist.modelparallel.torch.checkpoint.atomic_files import replace_file
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.checkpoint_progress import CheckpointProgress
from smdist.modelparallel.torch.checkpoint.gather_values import ValueOwner, directory, whole
from smdist.modelparallel.torch.checkpoint.local_values import (
    LocalValues,
    check_complete,
    local_values_of,
)
from smdist.modelparallel.torch.checkpoint.safetensors_file import Slot, refused, write_tensors
from smdist.modelparallel.torch.checkpoint.script_objects import model_of
from smdist.modelparallel.torch.checkpoint.team import Team

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_HINT: Final = "Free space, or export to another path"
FIVE_GB: Final = 5 * 10**9


@dataclass(frozen=True, slots=True)
class File:
    """File of an export.

    Attributes:
        name: File name.
        owner: Rank that writes the file.
        slots: Shape and type of each tensor in the file, by the tensor's exported name.
    """

    name: str
    owner: int
    slots: Mapping[str, Slot]


def export(
    path: str | PathLike[str], model: nn.Module | None = None, *, max_file_bytes: int = FIVE_GB
) -> None:
    """Write the whole model to safetensors files; all ranks have to call it.

    Args:
        path: Folder to write to: one that all hosts share, or a local one on each host, whose
            files are copied together afterwards.
        model: Model to export. Default: the last model of smp.DistributedModel or smp.parallelize.
        max_file_bytes: Largest size of a file; a file with a single tensor may be larger.

    Raises:
        OptionError: A tensor has a type that safetensors does not support.
        CheckpointError: A rank cannot write; all ranks raise the same error.
    """
    is_count = isinstance(max_file_bytes, int) and not isinstance(max_file_bytes, bool)
    require(
        is_count and max_file_bytes > 0,
        what=f"max_file_bytes is {max_file_bytes!r}",
        why="it has to be the largest size of a file in bytes",
        hint="Pass a number of bytes, such as 5 * 10**9",
        about="max_file_bytes",
    )
    team, folder = Team.here(), Path(path)
    holding = local_values_of(model_of(model))
    check_complete(holding, team)
    found = directory(holding.values, team)
    _check_types(found)
    names = exported_names(holding)
    files = _files(found, names, max_file_bytes)
    progress = CheckpointProgress(f"export to {folder}", prints=team.is_first)
    what = f"the model cannot be exported to {str(folder)!r}"
    team.do(what, lambda: folder.mkdir(parents=True, exist_ok=True), hint=_HINT)
    _write_all(folder, files, _Source(holding, names, found, team, progress))
    team.do_first(what, lambda: _finish(folder, files, holding), hint=_HINT)
    team.do(what, lambda: _remove_others(folder, files), hint=_HINT)
    progress.close(sum(each.fact.num_bytes for each in found.values()))


def exported_names(holding: LocalValues) -> dict[str, str]:
    """Return the name under which each value of a model is exported, by the value's own name.

    A tied parameter has several names in the model. Its own name is the first one in the state
    dict. Models of Hugging Face list some of the names in `_tied_weights_keys`. The parameter is
    exported under its first name that is not in this list.
    """
    tied = getattr(holding.whole, "_tied_weights_keys", None) or ()
    patterns = [re.compile(each) for each in tied]
    return {
        entry.name: next(
            (
                name
                for name in (entry.name, *entry.aliases)
                if not any(pattern.search(name) for pattern in patterns)
            ),
            entry.name,
        )
        for entry in holding.entries
    }


@dataclass(frozen=True, slots=True)
class _Source:
    """Source of the tensors of an export, which gathers them from the ranks one by one."""

    holding: LocalValues
    names: Mapping[str, str]
    found: Mapping[str, ValueOwner]
    team: Team
    progress: CheckpointProgress

    def tensors(self, file: File) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and value of each tensor of a file, on the rank that writes the file.

        Other ranks that have a shard of such a tensor must iterate too, so that the shards can be
        gathered. On these ranks nothing is yielded.
        """
        first = {exported: name for name, exported in self.names.items()}
        for exported in file.slots:
            name = first[exported]
            tensor = whole(self.holding.values.get(name), self.found[name], self.team)
            if tensor is not None:
                self.progress.add(tensor.numel() * tensor.element_size())
                yield exported, tensor


def _check_types(found: Mapping[str, ValueOwner]) -> None:
    objects = [name for name, each in found.items() if each.fact.shape is None]
    if objects:
        raise CheckpointError(
            f"{', '.join(objects[:8])} cannot be exported",
            "safetensors files contain tensors only, and these values are other objects",
            "Save the model with save_checkpoint(partial=False)",
            about=objects[0],
        )
    raise_all(refused({name: _slot(each) for name, each in found.items()}))


def _slot(found: ValueOwner) -> Slot:
    assert found.fact.shape is not None
    assert found.fact.dtype is not None
    return Slot(found.fact.shape, found.fact.dtype)


def _files(found: Mapping[str, ValueOwner], names: Mapping[str, str], most: int) -> list[File]:
    """Return the files to write; each rank writes the tensors that it has.

    Args:
        found: Rank that writes each tensor, and the tensor's description, by the tensor's name in
            the model (the first one if the tensor is tied).
        names: Name of each tensor in the export, by its name in the model.
        most: Largest size of a file in bytes; a single tensor may be larger.
    """
    parts: list[tuple[int, dict[str, Slot]]] = []
    for owner in sorted({each.owner for each in found.values()}):
        size = most + 1
        for name, each in found.items():
            if each.owner != owner:
                continue
            slot = _slot(each)
            if size + slot.num_bytes > most:
                parts.append((owner, {}))
                size = 0
            parts[-1][1][names[name]] = slot
            size += slot.num_bytes
    count = len(parts)
    titles = [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]
    titles = [_SINGLE] if count == 1 else titles
    return [File(title, *part) for title, part in zip(titles, parts, strict=True)]


def _write_all(folder: Path, files: list[File], source: _Source) -> None:
    """Write this rank's files, and take part in gathering the sharded tensors of all files.

    Args:
        folder: Folder of the export.
        files: Files of all ranks, in the order in which they are written.
        source: Source of the tensors.
    """
    team = source.team
    what = f"the model cannot be exported to {str(folder)!r}"

    def write() -> None:
        error: Exception | None = None
        for file in files:
            tensors = source.tensors(file)
            if file.owner == team.rank and error is None:
                error = _written(folder / file.name, file.slots, tensors)
            # iterate even after an error, since other ranks wait for this rank's shards
            list(map(_nothing, tensors))
        if error is not None:
            raise error

    team.do(what, write, hint=_HINT)


def _written(
    path: Path, slots: Mapping[str, Slot], tensors: Iterator[tuple[str, Tensor]]
) -> Exception | None:
    try:
        replace_file(path, lambda stream: write_tensors(stream, slots, tensors))
    except Exception as error:
        return error
    return None


def _nothing(_: object) -> None:
    """Ignore a tensor, since it is not written on this rank."""


def _finish(folder: Path, files: list[File], holding: LocalValues) -> None:
    for name in ("config", "generation_config"):
        settings = getattr(holding.whole, name, None)
        if hasattr(settings, "save_pretrained"):
            _save_settings(settings, folder, holding)
    if len(files) > 1:
        total = sum(slot.num_bytes for file in files for slot in file.slots.values())
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: file.name for file in files for name in file.slots},
        }
        text = json.dumps(index, indent=2) + "\n"
        replace_file(folder / _INDEX, lambda stream: stream.write(text.encode()))


def _save_settings(settings: Any, folder: Path, holding: LocalValues) -> None:
    if hasattr(settings, "architectures") and not settings.architectures:
        settings.architectures = [holding.title]
    settings.save_pretrained(folder)


def _remove_others(folder: Path, files: list[File]) -> None:
    """Remove the files of an earlier export that this export has not replaced."""
    names = {file.name for file in files} | ({_INDEX} if len(files) > 1 else set())
    for each in (*folder.glob("model*.safetensors"), *folder.glob(_INDEX)):
        if each.name not in names and re.fullmatch(
            r"model(-\d+-of-\d+)?\.safetensors.*", each.name
        ):
            each.unlink(missing_ok=True)
