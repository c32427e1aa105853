# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in one file, with the whole model and optimizer, which rank 0 gathers and writes.

Any script can read the model's state dict from such a file. The names are those of the user's
model:

    state_dict = torch.load(file)["model"]

Objects other than tensors are stored as pickled bytes. So opening the file runs no code from it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smdist.modelparallel.core.manifest import Manifest
from smdist.modelparallel.torch.checkpoint.atomic_files import (
    absent,
    check_tag,
    read_newest,
    replace_file,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError, in_words
from smdist.modelparallel.torch.checkpoint.dcp_store import unpickled
from smdist.modelparallel.torch.checkpoint.find_checkpoint import (
    MODEL,
    RECORD,
    USER_CONTENT,
    CheckpointSource,
)
from smdist.modelparallel.torch.checkpoint.gather_values import gathered
from smdist.modelparallel.torch.checkpoint.local_values import LocalValues
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
        values: Values on this rank, by key. The function removes two keys from this dict: RECORD
            (description of the checkpoint) and USER_CONTENT (the user's own object).
        holding: The model and its values on this rank.
        team: All ranks.

    Returns:
        Size of the file in bytes.

    Raises:
        CheckpointError: The file cannot be written.
    """
    objects = {key: values.pop(key) for key in (RECORD, USER_CONTENT)}
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
        document: dict[str, Any] = {"model": _opaque(model), "rest": _opaque(rest)}
        document |= {key: _pickled(key, value) for key, value in objects.items()}
        path.mkdir(parents=True, exist_ok=True)
        replace_file(path / tag, lambda stream: torch.save(document, stream))
        return (path / tag).stat().st_size

    return team.do_first(what, write, hint=_HINT)


def find_full(path: Path, tag: object, translate: Translate | None, team: Team) -> CheckpointSource:
    """Open a checkpoint that was saved as one file; every rank opens this file.

    The values are read from the file later, when they are loaded.

    Args:
        path: Folder of checkpoints.
        tag: Name of the checkpoint; None opens the newest checkpoint.
        translate: Function that converts the saved state dict of the model; None for no conversion.
        team: All ranks; each of them must call this function.

    Raises:
        CheckpointError: The file does not exist, or cannot be read.
    """
    what = f"no checkpoint can be loaded from {str(path)!r}"
    hint = "Copy the file to every host, or load another tag"
    name = team.do_first(
        what, lambda: check_tag(read_newest(path) if tag is None else tag), hint=""
    )
    return team.do(what, lambda: _opened(path, name, translate), hint=hint)


def _opened(path: Path, tag: str, translate: Translate | None) -> CheckpointSource:
    file = path / tag
    if not file.is_file():
        raise absent(path, tag, partial=False)
    try:
        document = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        record = _object(document[RECORD])
        model, rest = _transparent(document["model"]), _transparent(document["rest"])
    except Exception as error:
        raise CheckpointError(
            f"{str(file)!r} cannot be read",
            in_words(error),
            "Copy the file again, or load another tag",
        ) from error
    if translate is not None:
        model = translate(model)
        record = {**record, "manifest": _of(model, record["manifest"])}
    values = {**{f"{MODEL}{name}": value for name, value in model.items()}, **rest}
    return CheckpointSource(
        tag=tag,
        path=path,
        record=record,
        user_content=_object(document[USER_CONTENT]),
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
    return Manifest.from_document({**manifest, "entries": entries}).document()


def _opaque(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `values` in which pickled bytes replace each object that is no tensor.

    The bytes are in a list of length one.
    """
    return {k: v if isinstance(v, Tensor) else [_pickled(k, v)] for k, v in values.items()}


def _transparent(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v if isinstance(v, Tensor) else _object(v[0]) for k, v in values.items()}


def _pickled(key: str, value: Any) -> bytes:
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
    except Exception as error:
        raise CheckpointError(
            f"{key} cannot be pickled",
            in_words(error),
            "Leave it out of the checkpoint",
            about=key,
            kind="not_picklable",
        ) from error
    return stream.getvalue()


def _object(data: bytes) -> Any:
    return unpickled(io.BytesIO(data))
