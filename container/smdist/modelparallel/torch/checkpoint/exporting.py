# SPDX-License-Identifier: Apache-2.0
"""The whole model as safetensors, under Hugging Face's names: `smp.export`.

    folder/
      config.json                            the model's, where it has one
      model-00001-of-00002.safetensors       from stage 0
      model-00002-of-00002.safetensors       from stage 1
      model.safetensors.index.json           which tensor is in which file: written last

`transformers` opens that folder. Each stage writes its own files, one tensor after another, so no
rank ever has the whole model. What is tied is written once.
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
from smdist.modelparallel.torch.checkpoint.errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.files import replace_file
from smdist.modelparallel.torch.checkpoint.gather import Found, directory, whole
from smdist.modelparallel.torch.checkpoint.holding import Holding, check_complete, hold
from smdist.modelparallel.torch.checkpoint.progress import Progress
from smdist.modelparallel.torch.checkpoint.script import model_of
from smdist.modelparallel.torch.checkpoint.team import Team
from smdist.modelparallel.torch.checkpoint.tensorfile import Slot, refused, write_tensors

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_MEND: Final = "Free space, or export to another path"
FIVE_GB: Final = 5 * 10**9


@dataclass(frozen=True, slots=True)
class File:
    """One file of an export: who writes what into it; names as they are exported."""

    name: str
    owner: int
    slots: Mapping[str, Slot]


def export(
    path: str | PathLike[str], model: nn.Module | None = None, *, max_file_bytes: int = FIVE_GB
) -> None:
    """Write the whole model as safetensors; collective.

    Args:
        path: A folder: one for all hosts, or one on each that is copied to a common place.
        model: The default is the script's.
        max_file_bytes: A larger file only holds one tensor.

    Raises:
        OptionError: A tensor has a type that the format does not know.
        CheckpointError: Some rank cannot write: the same on all.
    """
    is_count = isinstance(max_file_bytes, int) and not isinstance(max_file_bytes, bool)
    require(
        is_count and max_file_bytes > 0,
        what=f"max_file_bytes is {max_file_bytes!r}",
        why="it is the size of a file",
        mend="Pass a number of bytes, such as 5 * 10**9",
    )
    team, folder = Team.here(), Path(path)
    holding = hold(model_of(model))
    check_complete(holding, team)
    found = directory(holding.values, team)
    _check_types(found)
    names = exported_names(holding)
    files = _files(found, names, max_file_bytes)
    progress = Progress(f"export to {folder}", is_told=team.is_first)
    what = f"the model cannot be exported to {str(folder)!r}"
    team.do(what, lambda: folder.mkdir(parents=True, exist_ok=True), mend=_MEND)
    _write_all(folder, files, _Source(holding, names, found, team, progress))
    team.do_first(what, lambda: _finish(folder, files, holding), mend=_MEND)
    team.do(what, lambda: _remove_others(folder, files), mend=_MEND)
    progress.close(sum(each.fact.num_bytes for each in found.values()))


def exported_names(holding: Holding) -> dict[str, str]:
    """The name that each value is exported under, by its first name.

    Hugging Face's models say which of tied names are made from others: those are left out.
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
    """Where tensors come from."""

    holding: Holding
    names: Mapping[str, str]
    found: Mapping[str, Found]
    team: Team
    progress: Progress

    def tensors(self, file: File) -> Iterator[tuple[str, Tensor]]:
        """Those of a file, on its owner; all ranks that share them out have to ask."""
        first = {exported: name for name, exported in self.names.items()}
        for exported in file.slots:
            name = first[exported]
            tensor = whole(self.holding.values.get(name), self.found[name], self.team)
            if tensor is not None:
                self.progress.add(tensor.numel() * tensor.element_size())
                yield exported, tensor


def _check_types(found: Mapping[str, Found]) -> None:
    objects = [name for name, each in found.items() if each.fact.shape is None]
    if objects:
        raise CheckpointError(
            f"{', '.join(objects[:8])}: no tensors",
            "safetensors holds nothing else",
            "Save the model with save_checkpoint(partial=False)",
        )
    raise_all(refused({name: _slot(each) for name, each in found.items()}))


def _slot(found: Found) -> Slot:
    assert found.fact.shape is not None
    assert found.fact.dtype is not None
    return Slot(found.fact.shape, found.fact.dtype)


def _files(found: Mapping[str, Found], names: Mapping[str, str], most: int) -> list[File]:
    """Each owner's tensors, in its order, in as few files as `most` bytes in each allow."""
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
    """A rank goes through the files of its owners in order: shards come together on the way."""
    team = source.team
    what = f"the model cannot be exported to {str(folder)!r}"

    def write() -> None:
        error: Exception | None = None
        for file in files:
            tensors = source.tensors(file)
            if file.owner == team.rank and error is None:
                error = _written(folder / file.name, file.slots, tensors)
            list(map(_nothing, tensors))  # others wait for this rank's shards, whatever failed
        if error is not None:
            raise error

    team.do(what, write, mend=_MEND)


def _written(
    path: Path, slots: Mapping[str, Slot], tensors: Iterator[tuple[str, Tensor]]
) -> Exception | None:
    try:
        replace_file(path, lambda stream: write_tensors(stream, slots, tensors))
    except Exception as error:
        return error
    return None


def _nothing(_: object) -> None:
    """Let go of it."""


def _finish(folder: Path, files: list[File], holding: Holding) -> None:
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


def _save_settings(settings: Any, folder: Path, holding: Holding) -> None:
    if hasattr(settings, "architectures") and not settings.architectures:
        settings.architectures = [holding.title]
    settings.save_pretrained(folder)


def _remove_others(folder: Path, files: list[File]) -> None:
    """Files of an earlier export into this folder."""
    names = {file.name for file in files} | ({_INDEX} if len(files) > 1 else set())
    for each in (*folder.glob("model*.safetensors"), *folder.glob(_INDEX)):
        if each.name not in names and re.fullmatch(
            r"model(-\d+-of-\d+)?\.safetensors.*", each.name
        ):
            each.unlink(missing_ok=True)
