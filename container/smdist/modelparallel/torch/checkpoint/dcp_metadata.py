# SPDX-License-Identifier: Apache-2.0
"""Reader of the file `.metadata` of PyTorch's distributed checkpoints, which runs no code from it.

The file is a pickle. It may contain the classes that describe values, and no others; what it says
is checked, so that the names in it are those of files in the checkpoint's own folder.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.serialization import _get_layout

from smdist.modelparallel.torch.checkpoint.atomic_files import METADATA, read_file
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
_LOOKED_UP: Final = (dcp._MEM_FORMAT_ENCODING, _get_layout)
_OPERATIONS: Final = (  # operations of binary protocols with which metadata is written
    b"".join(
        getattr(pickle, name)
        for name in (
            *("PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK"),
            *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
            *("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
            *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
            *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
            *("GLOBAL", "STACK_GLOBAL", "REDUCE", "NEWOBJ", "BUILD"),
            *("BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
        )
    ).decode("latin-1")
)
MOST_BYTES: Final = 2**31  # limit of a metadata file: about 10 million parts of tensors
_LARGEST: Final = 2**63 - 1  # largest position in a file


class _MetadataUnpickler(pickle._Unpickler):  # C's allocates what a corrupt file asks for
    """Unpickler of the classes of metadata, and of the operations that write them.

    A small file may describe a tuple of tuples that would take years to hash, or terabytes to
    print: keys of dicts and arguments of functions are checked before they are used.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: run for code, run in pickle._Unpickler.dispatch.items() if chr(code) in _OPERATIONS
    }

    def load(self) -> Any:
        """Return the object in the file.

        Raises:
            UnpicklingError: The file has an object, or an operation, that metadata never has.
        """
        try:
            return super().load()
        except KeyError as error:
            raise pickle.UnpicklingError("it has an operation of no metadata") from error

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of metadata, or a dtype."""
        if (module, name) in _KNOWN:
            return _KNOWN[module, name]
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which metadata never contains")

    def load_reduce(self) -> None:
        """Call a function; those that look up their argument take a word or a number."""
        args, function = self.stack[-1], self.stack[-2]  # type: ignore[attr-defined]
        if function in _LOOKED_UP and not all(type(each) in {int, str} for each in args):
            raise pickle.UnpicklingError(f"it calls {function.__name__} with no word or number")
        super().load_reduce()  # type: ignore[misc]

    def load_build(self) -> None:
        """Set the attributes of an object; a class has attributes, too, and is refused."""
        state, built = self.stack[-1], self.stack[-2]  # type: ignore[attr-defined]
        if not isinstance(built, _BUILT) or _has_slots(state):
            raise pickle.UnpicklingError(f"it sets attributes of {type(built).__name__}")
        if isinstance(built, dcp.TensorProperties) and not _is_state(state):
            raise pickle.UnpicklingError("it describes no tensor")
        super().load_build()  # type: ignore[misc]

    def load_setitem(self) -> None:
        """Set an item of a dict whose key is quick to hash."""
        _check_keys(self.stack[-2:-1])  # type: ignore[attr-defined]
        super().load_setitem()  # type: ignore[misc]

    def load_setitems(self) -> None:
        """Set items of a dict whose keys are quick to hash."""
        _check_keys(self.stack[::2])  # type: ignore[attr-defined]  # those after the mark
        super().load_setitems()  # type: ignore[misc]

    for _code, _run in (
        (pickle.REDUCE, load_reduce),
        (pickle.BUILD, load_build),
        (pickle.SETITEM, load_setitem),
        (pickle.SETITEMS, load_setitems),
    ):
        dispatch[_code[0]] = _run


def _check_keys(keys: Sequence[object]) -> None:
    """Check keys of a dict.

    Raises:
        UnpicklingError: A key is none of metadata: no word, no number, and no place of a value.
    """
    for key in keys:
        if type(key) not in {str, int} and not _is_index(key):
            raise pickle.UnpicklingError(f"it has a key of class {type(key).__name__}")


def _is_index(key: object) -> bool:
    """Return True if an object names a value, and the position of a part in it."""
    return (
        isinstance(key, MetadataIndex)
        and isinstance(key.fqn, str)
        and (key.offset is None or isinstance(key.offset, torch.Size))
    )


def _is_state(state: object) -> bool:
    """Return True if an object has the form of the state of a tensor's description."""
    if not isinstance(state, tuple) or len(state) != 5:
        return False
    return isinstance(state[3], dcp._MEM_FORMAT_ENCODING)


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
        pickled, _ = split_trailer(read_file(path, MOST_BYTES))
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
            yield f"the value {_shown(name)} is not described"
    for index, place in places.items():
        name = index.fqn if _is_index(index) else index
        if not isinstance(name, str) or name not in values:
            yield f"the place {_shown(name)} is that of no value"
        if not isinstance(place, _StorageInfo) or not _is_place(place):
            yield f"a value is in {_shown(getattr(place, 'relative_path', place))}"


def _shown(value: object) -> str:
    """Return a text of at most 80 characters for a value, which may be endless."""
    return f"{value!r:.80}" if isinstance(value, str) else f"a {type(value).__name__}"


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
