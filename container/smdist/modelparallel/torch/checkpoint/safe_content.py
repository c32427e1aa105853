# SPDX-License-Identifier: Apache-2.0
"""Objects in checkpoints that are no tensors: saved so that reading them runs no code.

Objects are written in the format of `torch.save`, and read with `weights_only=True`. PyTorch then
restores tensors and plain containers only. The classes of _CLASSES are restored, too: their
instances hold data, and code of theirs that runs is that of Python and NumPy.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import functools
import io
import pathlib
import pickle
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import IO, Any, Final

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import KeyPath, raise_all, subscripted
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError, in_words
from smdist.modelparallel.torch.checkpoint.pickle_cost import check_archive_cost

_CLASSES: Final = (
    argparse.Namespace,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    datetime.timezone,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
    frozenset,
    range,
    slice,
)
_NUMPY_KINDS: Final = "biufcSUmM"  # letters of dtypes without Python objects
_PLAIN: Final = {type(None), bool, int, float, complex, str, bytes, bytearray}
_TENSORS: Final = {Tensor, nn.Parameter}
_SEQUENCES: Final = {list, tuple, set, frozenset}
_MAPPINGS: Final = {dict, collections.OrderedDict, collections.Counter}


@dataclass(frozen=True, slots=True)
class SavedObject:
    """Object in the format of `torch.save`."""

    data: bytes


def pack(key: str, value: Any, *, allow_pickle: bool) -> SavedObject:
    """Return an object in the format of `torch.save`.

    Args:
        key: Name of the object in the checkpoint.
        value: The object.
        allow_pickle: False checks that `unpack` can read the object without running code.

    Raises:
        OptionError: The object cannot be pickled, or has parts that cannot be read without running
            code; the error names each of these parts.
    """
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
    except Exception as error:
        raise not_picklable(key, error) from error
    if not allow_pickle and type(value) not in _PLAIN and not is_readable(stream):
        raise_unsafe((key,), value)
    return SavedObject(stream.getvalue())


def unpack(key: str, data: IO[bytes], *, allow_pickle: bool) -> Any:
    """Return an object from the format of `torch.save`, with its tensors on the CPU.

    Args:
        key: Name of the object in the checkpoint.
        data: File with the object; its checksum is right.
        allow_pickle: True reads objects of all classes, which can run code from the file.

    Raises:
        CheckpointError: The object is of a class that is read with allow_pickle=True only; or it
            cannot be read.
    """
    if allow_pickle:
        return torch.load(data, map_location="cpu", weights_only=False)
    try:
        check_archive_cost(data)
        data.seek(0)
        with safe_classes():
            return torch.load(data, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise pickled_error(key, f"its classes are {_classes_in(data)}") from error
    except Exception as error:
        raise CheckpointError(
            f"{key} is corrupt",
            f"its checksum is right, but it cannot be read: {in_words(error)}",
            "Load another tag, or save again",
            about=key,
            kind="corrupt",
        ) from error


def pickled_error(what: str, why: str) -> CheckpointError:
    """Return the error for an object that is read with allow_pickle=True only.

    Args:
        what: Name of the object, or its file.
        why: Further reason, such as the names of its classes.
    """
    return CheckpointError(
        f"{what} contains pickled objects",
        f"reading them can run code of whoever wrote them; {why}",
        "Pass allow_pickle=True if you trust whoever wrote the checkpoint",
        about="allow_pickle",
        kind="pickled",
    )


def raise_unsafe(path: KeyPath, value: Any) -> None:
    """Raise an error for each part of an object that cannot be read without running code.

    Args:
        path: Name of the object, as a path of keys.
        value: The object. If no part is found that is to blame, the error is for the whole object.
    """
    unsafe = list(unsafe_parts(path, value)) or [(path, type(value))]
    raise_all(_unsafe_error(where, kind) for where, kind in unsafe)


def unsafe_parts(path: KeyPath, value: Any) -> Iterator[tuple[KeyPath, type]]:
    """Yield each part of an object that cannot be read without running code: its path and class.

    Args:
        path: Path of keys to the object.
        value: The object; dicts and sequences in it are searched.
    """
    pending: list[tuple[KeyPath, Any]] = [(path, value)]
    seen: set[int] = set()
    while pending:
        where, each = pending.pop(0)
        kind = type(each)
        if kind in _PLAIN or kind in _TENSORS or id(each) in seen:
            continue
        seen.add(id(each))
        parts = _parts(each)
        if parts is not None:
            pending += [((*where, name), part) for name, part in parts]
        elif not _is_safe(each):
            yield where, kind


def _parts(value: Any) -> list[tuple[str | int, Any]] | None:
    """Return the parts of a container, with the key of each; None for another object."""
    kind = type(value)
    if kind in _SEQUENCES:
        return list(enumerate(value))
    if kind is argparse.Namespace:
        return list(vars(value).items())
    if kind not in _MAPPINGS:
        return None
    keys = [(_named(key), key) for key in value if type(key) not in _PLAIN]
    own = list(getattr(value, "__dict__", {}).items())
    return [*((_named(key), part) for key, part in value.items()), *keys, *own]


def _named(key: Any) -> str | int:
    """Return the key of a dict as a part of a path."""
    return key if isinstance(key, str | int) else repr(key)


def _is_safe(value: Any) -> bool:
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
    except Exception:
        return False
    return is_readable(stream)


def is_readable(file: IO[bytes] | str) -> bool:
    """Return True if a file of `torch.save` can be read without running code from it.

    Args:
        file: Open file in memory, or the path of a file, whose tensors are not read.
    """
    is_path = isinstance(file, str)
    if not isinstance(file, str):
        file.seek(0)
    try:
        with safe_classes():
            torch.load(file, map_location="meta", weights_only=True, mmap=is_path)
    except pickle.UnpicklingError:
        return False
    return True


def safe_classes() -> AbstractContextManager[None]:
    """Allow the safe classes in files that are read with weights_only=True; for `with`."""
    numpy = _numpy_classes() if "numpy" in sys.modules else ()
    found: AbstractContextManager[None] = torch.serialization.safe_globals([*_CLASSES, *numpy])
    return found


def _classes_in(data: IO[bytes]) -> str:
    data.seek(0)
    with safe_classes():
        found = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(data))
    return ", ".join(found[:8]) or "their classes are unknown"


@functools.cache
def _numpy_classes() -> tuple[Any, ...]:
    """Return the classes of NumPy's numbers and arrays, and the functions that restore them."""
    import numpy as np

    functions = (np.zeros(1).__reduce__()[0], np.float32(1).__reduce__()[0])
    dtypes = (np.dtype(code) for code in np.typecodes["All"])
    plain = {type(each) for each in dtypes if each.kind in _NUMPY_KINDS}
    return (np.ndarray, np.dtype, *functions, *plain)


def _unsafe_error(path: KeyPath, kind: type) -> CheckpointError:
    name = f"{kind.__module__}.{kind.__qualname__}"
    return CheckpointError(
        f"{subscripted(path)} is a {name}",
        "a checkpoint contains data of plain classes only, so that reading it runs no code",
        "Save its contents as dicts, lists, numbers, strings, tensors or NumPy arrays; or pass"
        " allow_pickle=True, here and to the function that loads it",
        about=path,
        kind="unsafe",
    )


def not_picklable(key: str, error: BaseException) -> CheckpointError:
    """Return the error for an object that cannot be pickled at all.

    Args:
        key: Name of the object in the checkpoint.
        error: Error of pickle.
    """
    return CheckpointError(
        f"{key} cannot be pickled",
        in_words(error),
        "Leave it out of the checkpoint",
        about=key,
        kind="not_picklable",
    )
