# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in one file, with the whole model and optimizer, which rank 0 gathers and writes.

Any script can read the model's state dict from such a file. The names are those of the user's
model:

    state_dict = torch.load(file)["model"]

Objects other than tensors are stored as bytes. So the tensors of any file can be read without
running code from it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.core.manifest_document import manifest_of
from smdist.modelparallel.torch.checkpoint.absent_checkpoint import (
    absent,
    absent_newest,
    none_whole,
)
from smdist.modelparallel.torch.checkpoint.atomic_files import (
    check_tag,
    read_newest,
    replace_file,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    SkippedCheckpoint,
)
from smdist.modelparallel.torch.checkpoint.find_checkpoint import (
    MODEL,
    CheckpointSource,
    manifest_in,
    warn_of,
)
from smdist.modelparallel.torch.checkpoint.full_files import (
    RECORD,
    USER_CONTENT,
    check_archive,
    full_tags,
    is_full,
    list_full,
    read_document,
    save_of,
)
from smdist.modelparallel.torch.checkpoint.gather_values import gathered
from smdist.modelparallel.torch.checkpoint.local_values import LocalValues
from smdist.modelparallel.torch.checkpoint.metadata_trailer import FORMAT
from smdist.modelparallel.torch.checkpoint.safe_content import SavedObject, unpack
from smdist.modelparallel.torch.checkpoint.save_numbers import next_number
from smdist.modelparallel.torch.checkpoint.team import Team

_HINT = "Free space, or save with partial=True, so that no rank needs memory for all values"
Translate = Callable[[dict[str, Any]], dict[str, Any]]


def write_full(
    path: Path, tag: str, values: dict[str, Any], holding: LocalValues, team: Team
) -> int:
    """Gather all values on rank 0, and write them to one file; all ranks have to call it.

    Args:
        path: Folder of checkpoints.
        tag: Name of the checkpoint and of the file.
        values: Values on this rank, by key; objects other than tensors are packed. On rank 0, the
            function removes two keys from this dict: RECORD (description of the checkpoint) and
            USER_CONTENT (the user's own object).
        holding: The model and its values on this rank.
        team: All ranks.

    Returns:
        Size of the file in bytes.

    Raises:
        CheckpointError: The file cannot be written.
    """
    keys = (RECORD, USER_CONTENT)
    objects: dict[str, SavedObject] = {key: values.pop(key) for key in keys if key in values}
    found = dict(gathered(values, team, to_rank0=True))
    aliases = {each.name: each.aliases for each in holding.entries}
    model = {
        alias: value
        for key, value in found.items()
        if key.startswith(MODEL)
        for name in [key.removeprefix(MODEL)]
        for alias in (name, *aliases.get(name, ()))
    }
    rest = {key: value for key, value in found.items() if not key.startswith(MODEL)}
    what = f"checkpoint {tag!r} cannot be written to {str(path)!r}"

    def write() -> int:
        head: dict[str, Any] = {"format": FORMAT, "save": _next_number(path)}
        document = {**head, "model": _opaque(model), "rest": _opaque(rest)}
        document |= {key: packed.data for key, packed in objects.items()}
        replace_file(path / tag, lambda stream: torch.save(document, stream))
        return (path / tag).stat().st_size

    return team.do_first(what, write, hint=_HINT)


def _next_number(path: Path) -> str:
    documents = []
    for tag in full_tags(path):
        with suppress(CheckpointError):
            documents.append(read_document(path / tag))
    return next_number(save_of(each) for each in documents if is_full(each))


def find_full(
    path: Path, tag: object, translate: Translate | None, team: Team, *, allow_pickle: bool
) -> CheckpointSource:
    """Open a checkpoint that was saved as one file; every rank opens this file.

    The checksums of the file are verified. The values are read later, when they are loaded.

    Args:
        path: Folder of checkpoints.
        tag: Name of the checkpoint. None opens the newest one that is whole on all ranks, with a
            warning that names newer ones, which are not whole.
        translate: Function that converts the saved state dict of the model; None for no conversion.
        team: All ranks; each of them must call this function.
        allow_pickle: True reads objects of all classes, which can run code from the file.

    Raises:
        NoCheckpointError: No save has ever finished in this folder.
        CheckpointError: The file does not exist, cannot be read, or has objects of refused classes.
    """
    what = f"no checkpoint can be loaded from {str(path)!r}"
    hint = "Copy the file to every host, or load another tag"

    def opened(name: str) -> CheckpointSource:
        return team.do(
            what, lambda: _opened(path, name, translate, allow_pickle=allow_pickle), hint=hint
        )

    if tag is not None:
        return opened(team.do_first(what, lambda: check_tag(tag), hint=""))
    tags, faults = team.do_first(what, lambda: _listed(path), hint=hint)
    skipped = [*faults]
    for name in tags:
        try:
            source = opened(name)
        except CheckpointError as error:
            if error.kind != "corrupt":
                raise
            skipped.append(SkippedCheckpoint(name, "corrupt", (name,), error.why))
            continue
        warn_of(tuple(skipped), name, team)
        return source
    finished = bool(skipped)
    raise team.do_first(
        what,
        lambda: none_whole(path, tuple(skipped), partial=False, finished=finished),
        hint=hint,
    )


def _listed(path: Path) -> tuple[list[str], list[SkippedCheckpoint]]:
    """Return the tags to try; and faults of files, and of the tag in the file "newest"."""
    newest = read_newest(path)
    found = list_full(path, newest)
    tags = {*found.tags, *(each.tag for each in found.faults)}
    return found.tags, [*absent_newest(path, newest, tags, partial=False), *found.faults]


def _opened(
    path: Path, tag: str, translate: Translate | None, *, allow_pickle: bool
) -> CheckpointSource:
    file = path / tag
    if not file.is_file():
        raise absent(path, tag, partial=False)
    check_archive(file)
    document = read_document(file)
    if not is_full(document):
        raise CheckpointError(
            f"{str(file)!r} is no checkpoint",
            "save_checkpoint did not write it",
            "Pass the tag of a checkpoint",
            about="tag",
            kind="foreign",
        )

    def unpacked(key: str, data: bytes) -> Any:
        return unpack(key, io.BytesIO(data), allow_pickle=allow_pickle)

    def transparent(values: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v if isinstance(v, Tensor) else unpacked(k, v[0]) for k, v in values.items()}

    record = unpacked(RECORD, document[RECORD])
    model, rest = transparent(document["model"]), transparent(document["rest"])
    if translate is not None:
        model = translate(model)
        manifest_in(record)
        record = {**record, "manifest": _of(model, record["manifest"])}
    values = {**{f"{MODEL}{name}": value for name, value in model.items()}, **rest}
    return CheckpointSource(
        tag=tag,
        path=path,
        number=save_of(document),
        manifest=manifest_in(record),
        record=record,
        user_content=unpacked(USER_CONTENT, document[USER_CONTENT]),
        values=values,
    )


def _of(model: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest that lists the values of a translated state dict.

    A manifest is the list of a checkpoint's contents: names, shapes and types of values.

    Args:
        model: State dict that the user's translate function returned.
        manifest: Manifest of the checkpoint, before the translation.
    """
    entries = [
        {
            "name": name,
            "aliases": (),
            "shape": tuple(value.shape) if isinstance(value, Tensor) else None,
            "dtype": str(getattr(value, "dtype", "")).removeprefix("torch."),
        }
        for name, value in model.items()
    ]
    return manifest_of({**manifest, "entries": entries}).document()


def _opaque(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `values` in which bytes replace each object that is no tensor.

    The bytes are in a list of length one.
    """
    return {k: [v.data] if isinstance(v, SavedObject) else v for k, v in values.items()}
