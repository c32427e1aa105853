# SPDX-License-Identifier: Apache-2.0
"""Handles of operations that were started and not yet synchronized, as in Horovod: numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.torch.horovod.communicator import Communicator, Started
from smdist.dataparallel.torch.horovod.process_set import ProcessSet


@dataclass(slots=True)
class _Operation:
    """Operation of a handle.

    Attributes:
        key: Kind and name of the operation and its process set; None if it has no name.
        communicator: Where it runs.
        parts: Its operations in the engine.
        finish: Function from their results to the operation's result.
    """

    key: tuple[str, str, int | None] | None
    communicator: Communicator
    parts: Sequence[Started]
    finish: Callable[[list[torch.Tensor]], Any]


_numbers = itertools.count(1)
_operations: dict[int, _Operation] = {}
_names: set[tuple[str, str, int | None]] = set()


def claim(
    kind: str, name: str | None, process_set: ProcessSet
) -> tuple[str, str, int | None] | None:
    """Return the key of an operation that is about to be started.

    Raises:
        OptionError: An operation with this name was started and not yet synchronized.
    """
    if name is None:
        return None
    key = (kind, name, process_set.process_set_id)
    require(
        key not in _names,
        what=f"{kind} was called with name={name!r}",
        why="an operation of this name was started, and synchronize() was not yet called for it",
        hint="Call synchronize() with its handle first, or use another name",
        about="name",
        kind="twice",
    )
    return key


def add(
    key: tuple[str, str, int | None] | None,
    communicator: Communicator,
    parts: Sequence[Started],
    finish: Callable[[list[torch.Tensor]], Any],
) -> int:
    """Return a handle for an operation that was started; see _Operation for the arguments."""
    number = next(_numbers)
    _operations[number] = _Operation(key, communicator, parts, finish)
    if key is not None:
        _names.add(key)
    return number


def then(handle: int, function: Callable[[Any], Any]) -> int:
    """Let synchronize() return `function` of the operation's result; return the same handle."""
    operation = _operation(handle)
    finish = operation.finish
    operation.finish = lambda buffers: function(finish(buffers))
    return handle


def poll(handle: int) -> bool:
    """Return True if the operation has ended, so that synchronize() does not wait.

    Raises:
        OptionError: The handle does not exist, or was synchronized.
    """
    operation = _operation(handle)
    return all(part.is_done or part.work.is_completed() for part in operation.parts)


def synchronize(handle: int) -> Any:
    """Wait for an operation and return its result; the handle then no longer exists.

    Raises:
        OptionError: The handle does not exist, or was synchronized.
        HorovodMismatchError: Ranks called different things; the next call works.
        HorovodInternalError: A rank was lost.
    """
    operation = _operation(handle)
    del _operations[handle]
    if operation.key is not None:
        _names.discard(operation.key)
    return operation.finish([operation.communicator.wait(part) for part in operation.parts])


def forget_all() -> None:
    """Forget all handles, when the engine is shut down."""
    _operations.clear()
    _names.clear()


def _operation(handle: Any) -> _Operation:
    if not isinstance(handle, int) or handle not in _operations:
        raise OptionError(
            f"there is no handle {handle!r}",
            "it was synchronized before, or no operation has returned it",
            "Pass the result of a function such as allreduce_async(), once",
            about="handle",
            kind="unknown",
        )
    return _operations[handle]
