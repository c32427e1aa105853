# SPDX-License-Identifier: Apache-2.0
"""Check of a file of `torch.save` before torch reads it: what it describes is quick to make.

torch's reader with `weights_only=True` runs no code of the file. A small file can take years all
the same: it may use a tuple of tuples of tuples, each of them twice, as the key of a dict, or make
a set of a range of a trillion numbers. So the operations of the pickle are followed first, without
making an object: the check counts how many objects each argument and each key would have.
"""

from __future__ import annotations

import pickletools
import zipfile
from dataclasses import dataclass
from typing import IO, Any, Final

_MOST_BYTES: Final = 2**30  # limit of a pickle; tensors are not in it
_MOST_OBJECTS: Final = 1_000_000  # limit of a key or an argument, also in a small pickle
_PERSISTENT: Final = 16  # limit of the name of a storage, which torch writes as a tuple of five
_REPEATED: Final = 10  # objects of a key or an argument for each byte of a large pickle


@dataclass(slots=True)
class _Value:
    """Value that an operation would make: the number of its objects, and whether it is a range."""

    count: int = 1
    is_range: bool = False
    name: str = ""


_ATOM: Final = _Value()
_MARK: Final = _Value()
_PUTS: Final = {"BINPUT", "LONG_BINPUT"}
_GETS: Final = {"BINGET", "LONG_BINGET"}
_TUPLES: Final = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ATOMS: Final = {
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINSTRING"),
}


def check_archive_cost(file: IO[bytes] | str) -> None:
    """Check the pickle in a file of `torch.save`.

    Args:
        file: Path of the file, or an open one; its position does not matter.

    Raises:
        ValueError: The file has no such pickle, or one that is not quick to read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = [each for each in archive.infolist() if each.filename.endswith("/data.pkl")]
            if len(members) != 1 or members[0].file_size > _MOST_BYTES:
                raise ValueError("it has no pickle, or one that is too large")
            pickled = archive.read(members[0])
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError) as error:
        raise ValueError("it is no archive of torch.save") from error
    check_cost(pickled)


def check_cost(pickled: bytes) -> None:
    """Check a pickle of protocol 2.

    Raises:
        ValueError: Its end is missing, or a key or an argument has too many objects.
    """
    try:
        _Follower(len(pickled)).follow(pickled)
    except (IndexError, KeyError) as error:
        raise ValueError("its operations do not fit each other") from error


class _Follower:
    """Follows the operations of a pickle as its reader would, without making objects."""

    def __init__(self, num_bytes: int) -> None:
        self._stack: list[_Value] = []
        self._memo: dict[int, _Value] = {}
        self._most = max(_MOST_OBJECTS, _REPEATED * num_bytes)

    def follow(self, pickled: bytes) -> None:
        for operation, argument, _ in pickletools.genops(pickled):
            self._do(operation.name, argument)

    def _do(self, name: str, argument: Any) -> None:
        if name in _ATOMS:
            self._stack.append(_ATOM)
        elif name in _PUTS:
            self._memo[argument] = self._stack[-1]
        elif name in _GETS:
            self._stack.append(self._memo[argument])
        elif name in _TUPLES:
            self._join(self._popped(_TUPLES[name]))
        elif name == "TUPLE":
            self._join(self._since_mark())
        elif name == "GLOBAL":
            self._stack.append(_Value(name=argument))
        elif name in {"REDUCE", "NEWOBJ"}:
            self._call()
        elif name in _CONTAINERS:
            _CONTAINERS[name](self)
        elif name not in {"PROTO", "STOP"}:
            raise ValueError(f"it has the operation {name}, which torch.save never writes")

    def _popped(self, count: int) -> list[_Value]:
        found = [self._stack.pop() for _ in range(count)]
        return found[::-1]

    def _since_mark(self) -> list[_Value]:
        found = []
        while (value := self._stack.pop()) is not _MARK:
            found.append(value)
        return found[::-1]

    def _join(self, items: list[_Value]) -> None:
        """Push a tuple. A number is cut off where it is too large anyway."""
        count = 1 + sum(each.count for each in items)
        is_range = any(each.is_range for each in items)
        self._stack.append(_Value(min(count, self._most + 1), is_range))

    def _call(self) -> None:
        function, arguments = self._popped(2)
        self._check(arguments)
        if arguments.is_range:
            raise ValueError("it passes a range to a function")
        is_range = function.name in {"builtins range", "__builtin__ range", "__builtin__ xrange"}
        self._stack.append(_Value(arguments.count, is_range))

    def _check(self, value: _Value) -> None:
        if value.count > self._most:
            raise ValueError(f"a key or an argument has more than {self._most:,} objects")

    def _new(self) -> None:
        self._stack.append(_Value())

    def _mark(self) -> None:
        self._stack.append(_MARK)

    def _append(self) -> None:
        self._add(self._popped(1))

    def _extend(self) -> None:
        self._add(self._since_mark())

    def _set(self) -> None:
        self._set_items(self._popped(2))

    def _set_all(self) -> None:
        self._set_items(self._since_mark())

    def _set_items(self, items: list[_Value]) -> None:
        for key in items[::2]:
            self._check(key)
        self._add(items)

    def _add(self, items: list[_Value]) -> None:
        container = self._stack[-1]
        if container is _ATOM:
            raise ValueError("it adds items to a number or a text")
        count = container.count + sum(each.count for each in items)
        container.count = min(count, self._most + 1)

    def _build(self) -> None:
        self._popped(1)

    def _load_storage(self) -> None:
        (name,) = self._popped(1)
        if name.count > _PERSISTENT:
            raise ValueError("the name of a storage has too many objects")
        self._stack.append(_ATOM)


_CONTAINERS: Final = {
    "EMPTY_LIST": _Follower._new,
    "EMPTY_DICT": _Follower._new,
    "EMPTY_SET": _Follower._new,
    "MARK": _Follower._mark,
    "APPEND": _Follower._append,
    "APPENDS": _Follower._extend,
    "SETITEM": _Follower._set,
    "SETITEMS": _Follower._set_all,
    "BUILD": _Follower._build,
    "BINPERSID": _Follower._load_storage,
}
