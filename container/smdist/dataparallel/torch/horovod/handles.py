# SPDX-License-Identifier: Apache-2.0
"""Handles of operations that were started and not yet synchronized, as in Horovod: numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.torch.horovod.communicator import Communicator, Started
from smdist.dataparallel.torch.horovod.flat_buffers import shown
from smdist.dataparallel.torch.horovod.named_operations import Begin, Finish, NamedOperation
from smdist.dataparallel.torch.horovod.process_set import ProcessSet

_Key = tuple[str, str, int | None]


class _Pending(Protocol):
    """Operation that was called and may not have ended."""

    def is_done(self) -> bool:
        """Return True if wait() does not wait."""
        ...

    def wait(self) -> Any:
        """Wait for the operation and return its result."""
        ...


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Operation without a name, which has started.

    Attributes:
        communicator: Where it runs.
        parts: Its operations in the engine.
        finish: Function from their results to the operation's result.
    """

    communicator: Communicator
    parts: Sequence[Started]
    finish: Finish

    def is_done(self) -> bool:
        """Return True if wait() does not wait."""
        return all(part.is_done or part.work.is_completed() for part in self.parts)

    def wait(self) -> Any:
        """Wait for the operation and return its result."""
        return self.finish([self.communicator.wait(part) for part in self.parts])


@dataclass(slots=True)
class _Operation:
    """Operation of a handle.

    Attributes:
        key: Kind and name of the operation and its process set; None if it has no name.
        pending: The operation.
        convert: Function from its result to that of synchronize().
    """

    key: _Key | None
    pending: _Pending
    convert: Callable[[Any], Any]


_numbers = itertools.count(1)
_operations: dict[int, _Operation] = {}
_names: set[_Key] = set()


def start(
    kind: str,
    name: str | None,
    process_set: ProcessSet,
    tensors: Sequence[torch.Tensor],
    begin: Begin,
    detail: str = "",
) -> int:
    """Start an operation, or with a name bring it, and return its handle.

    Args:
        kind: Collective, as Horovod calls it.
        name: Name by which ranks match it; None to match it by the order of the calls.
        process_set: The ranks that take part.
        tensors: This rank's tensors.
        begin: Function that starts it. With a name, another thread calls it, and operations of
            other threads may start before and after it.
        detail: Argument of the call that errors show beside the tensors, such as "root 0".

    Raises:
        OptionError: An operation with this name was started and not yet synchronized, or this rank
            is not in the process set.
    """
    communicator: Communicator = process_set.communicator()
    key: _Key | None = None
    pending: _Pending
    if name is None:
        pending = _Numbered(communicator, *begin(communicator))
    else:
        details = ", ".join(filter(None, (f"name={name!r}", shown(tensors), detail)))
        operation = NamedOperation(f"{kind}({details})", begin, tensors[0])
        named = communicator.named()
        key = _claim(kind, name, process_set)
        try:
            pending = named.call(f"{kind}.{name}", operation)
        except BaseException:
            _names.discard(key)
            raise
    number = next(_numbers)
    _operations[number] = _Operation(key, pending, lambda result: result)
    return number


def _claim(kind: str, name: str, process_set: ProcessSet) -> _Key:
    """Return the key of an operation that is about to be started, and keep its name.

    Raises:
        OptionError: An operation with this name was started and not yet synchronized.
    """
    key = (kind, name, process_set.process_set_id)
    require(
        key not in _names,
        what=f"{kind} was called with name={name!r}",
        why="an operation of this name was started, and synchronize() was not yet called for it",
        hint="Call synchronize() with its handle first, or use another name",
        about="name",
        kind="twice",
    )
    _names.add(key)
    return key


def then(handle: int, function: Callable[[Any], Any]) -> int:
    """Let synchronize() return `function` of the operation's result; return the same handle."""
    operation = _operation(handle)
    convert = operation.convert
    operation.convert = lambda result: function(convert(result))
    return handle


def poll(handle: int) -> bool:
    """Return True if the operation has ended, so that synchronize() does not wait.

    Raises:
        OptionError: The handle does not exist, or was synchronized.
    """
    return _operation(handle).pending.is_done()


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; the handle then no longer exists.

    Raises:
        OptionError: The handle does not exist, or was synchronized.
        HorovodMismatchError: Ranks called different things; the next call works.
        HorovodInternalError: A rank was lost.
    """
    operation = _operation(handle)
    del _operations[handle]
    try:
        result = operation.pending.wait()
    finally:
        if operation.key is not None:
            _names.discard(operation.key)
    return operation.convert(result)


def forget_all() -> None:
    """Forget all handles, when the engine is shut down."""
    _operations.clear()
    _names.clear()


def _operation(handle: Any) -> _Operation:
    require(
        not callable(handle),
        what="the function that sparse_allreduce_async() has returned was passed as a handle",
        why="it waits for the result itself",
        hint="Call it: handle()",
        about="handle",
        kind="function",
    )
    if not isinstance(handle, int) or handle not in _operations:
        raise OptionError(
            f"there is no handle {handle!r}",
            "it was synchronized before, or no operation has returned it",
            "Pass the result of a function such as allreduce_async(), once",
            about="handle",
            kind="unknown",
        )
    return _operations[handle]
