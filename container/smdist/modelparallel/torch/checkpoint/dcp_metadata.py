# SPDX-License-Identifier: Apache-2.0
"""Reader of the file `.metadata` of PyTorch's distributed checkpoints, which runs no code from it.

The file is a pickle. It may contain the classes that describe values, and no others; what it says
is checked, so that the names in it are those of files in the checkpoint's own folder.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.serialization import _get_layout

from smdist.modelparallel.torch.checkpoint.atomic_files import METADATA
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError, in_words
from smdist.modelparallel.torch.checkpoint.metadata_trailer import split_trailer

_BUILT: Final = (
    Metadata,
    MetadataIndex,
    dcp.TensorStorageMetadata,
    dcp.BytesStorageMetadata,
    dcp.ChunkStorageMetadata,
    dcp.TensorProperties,
    dcp.StorageMeta,
    _StorageInfo,
)
_CALLED: Final = (*_BUILT, torch.Size, dcp._MEM_FORMAT_ENCODING)
_KNOWN: Final = {
    **{(each.__module__, each.__qualname__): each for each in _CALLED},
    ("torch.serialization", "_get_layout"): _get_layout,
}
_LARGEST: Final = 2**63 - 1  # largest position in a file


class _MetadataUnpickler(pickle._Unpickler):  # C's allocates what a corrupt file asks for
    """Unpickler that finds the classes of metadata only, and changes no class."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of metadata, or a dtype."""
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which metadata never contains")

    def load_build(self) -> None:
        """Set the attributes of an object; a class has attributes, too, and is refused."""
        state, built = self.stack[-1], self.stack[-2]  # type: ignore[attr-defined]
        if not isinstance(built, _BUILT) or _has_slots(state):
            raise pickle.UnpicklingError(f"it sets attributes of {type(built).__name__}")
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build


def _has_slots(state: object) -> bool:
    """Return True if a state has the form that sets attributes one by one, whatever they are."""
    return isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict)


def read_metadata(folder: Path, name: str = METADATA) -> Metadata:
    """Read the metadata of a checkpoint: the file and position of each value.

    Args:
        folder: Folder of the checkpoint.
        name: Name of the metadata file.

    Raises:
        FileNotFoundError: The folder has no such file.
        CheckpointError: The file cannot be read, has a wrong checksum, or is not the metadata of a
            checkpoint.
    """
    path = folder / name
    try:
        pickled, _ = split_trailer(path.read_bytes())
        found = _MetadataUnpickler(io.BytesIO(pickled)).load()
        faults = list(_faults(found))
    except FileNotFoundError:
        raise
    except Exception as error:
        raise _unreadable(path, in_words(error)) from error
    if faults:
        raise _unreadable(path, "; ".join(faults[:4]))
    assert isinstance(found, Metadata)
    return found


def _unreadable(path: Path, why: str) -> CheckpointError:
    hint = "Load another tag"
    return CheckpointError(
        f"{str(path)!r} cannot be read", why, hint, about=path.name, kind="corrupt"
    )


def _faults(found: object) -> Iterator[str]:
    if not isinstance(found, Metadata):
        yield f"it contains an object of class {type(found).__name__}"
        return
    values, places = found.state_dict_metadata, found.storage_data
    if not isinstance(values, dict) or not isinstance(places, dict):
        yield "it has no list of values, or none of their places"
        return
    for name, value in values.items():
        if not isinstance(name, str) or not _is_value(value):
            yield f"the value {name!r:.80} is not described"
    for index, place in places.items():
        if not isinstance(index, MetadataIndex) or index.fqn not in values:
            yield f"the place {index!r:.80} is that of no value"
        if not isinstance(place, _StorageInfo) or not _is_place(place):
            yield f"a value is in {getattr(place, 'relative_path', place)!r:.80}"


def _is_value(value: object) -> bool:
    if isinstance(value, dcp.BytesStorageMetadata):
        return True
    if not isinstance(value, dcp.TensorStorageMetadata):
        return False
    properties, size, chunks = value.properties, value.size, value.chunks
    return (
        isinstance(properties, dcp.TensorProperties)
        and isinstance(properties.dtype, torch.dtype)
        and isinstance(size, torch.Size)
        and isinstance(chunks, list)
        and all(
            isinstance(each, dcp.ChunkStorageMetadata) and _is_in(each, size) for each in chunks
        )
    )


def _is_in(chunk: dcp.ChunkStorageMetadata, size: torch.Size) -> bool:
    """Return True if a part of a tensor lies within the whole tensor."""
    offsets: object = chunk.offsets
    sizes: object = chunk.sizes
    if not isinstance(offsets, torch.Size) or not isinstance(sizes, torch.Size):
        return False
    if not len(offsets) == len(sizes) == len(size):
        return False
    parts = zip(offsets, sizes, size, strict=True)
    return all(start >= 0 and length >= 0 and start + length <= end for start, length, end in parts)


def _is_place(place: _StorageInfo) -> bool:
    """Return True if a place is in a file of the checkpoint's own folder."""
    name: object = place.relative_path
    is_name = isinstance(name, str) and name not in {"", ".", ".."} and not {*"/\\\0"} & {*name}
    numbers = (place.offset, place.length, getattr(place, "crc", 0))
    return is_name and all(type(each) is int and 0 <= each <= _LARGEST for each in numbers)


def num_bytes_of(metadata: Metadata) -> int:
    """Return the size of all values of a checkpoint in bytes."""
    return sum(info.length for info in metadata.storage_data.values())


def file_sizes(metadata: Metadata) -> dict[str, int]:
    """Return the smallest size that each file of a checkpoint must have, in bytes, by file name."""
    sizes: dict[str, int] = {}
    for info in metadata.storage_data.values():
        end = info.offset + info.length
        sizes[info.relative_path] = max(end, sizes.get(info.relative_path, 0))
    return sizes
