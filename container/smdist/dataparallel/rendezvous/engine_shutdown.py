# SPDX-License-Identifier: Apache-2.0
"""Shutdown of the engines when this process ends; a forked child only closes their connections."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from sagemaker_dist.errors import DistError
from smdist.config import read_fault_file
from smdist.dataparallel.rendezvous.clean_tf_error import unwrap_message
from smdist.dataparallel.rendezvous.engine_interface import Engine, EngineFault

_MAX_REASON = 1000  # characters of an abort reason
_live: list[tuple[Engine, str]] = []  # (running engine, name of this rank in messages)
# engines of the parent process in a forked child, where they are never used and never destroyed
_inherited: list[Engine] = []
_beforehand: list[Callable[[], None]] = []  # called before engines are shut down without an error
_afterwards: list[Callable[[], None]] = []  # called when this process ends, without engines


def register_engine(engine: Engine, name: str) -> None:
    """Add the engine to those that are shut down when this process ends.

    Args:
        engine: A connected engine.
        name: Name of this rank in messages, such as "rank 3 on algo-2".
    """
    register_shutdown()
    forget_stopped_engines()
    _live.append((engine, name))


def forget_stopped_engines() -> None:
    """Remove the engines that were shut down, so that `last_fault` is not about them any more."""
    _live[:] = [each for each in _live if each[0].is_running()]


@cache
def register_shutdown() -> None:
    """Register the exit handler that shuts down engines; only the first call has an effect.

    Exit handlers that are registered after this call run before the shutdown.
    """
    atexit.register(_shut_down_engines)
    os.register_at_fork(after_in_child=_close_in_child)


def call_before_shutdown(function: Callable[[], None]) -> None:
    """Call the function when this process ends without an exception, before the shutdown."""
    _beforehand.append(function)


def call_after_shutdown(function: Callable[[], None]) -> None:
    """Call the function when this process ends and its engines have been shut down."""
    _afterwards.append(function)


def abort(reason: str, details: str = "") -> None:
    """Fail all current and later operations of this process's engines, on all ranks.

    The errors on all ranks contain `reason`, and their `last_fault` contains `details`. An
    engine that has failed already keeps its first fault.
    """
    for engine, _ in _live:
        if engine.is_running():
            engine.abort(reason, details)


def last_fault() -> EngineFault | None:
    """Return the fault of an engine of this process, or of its last operation; None if none failed.

    Use it after torch's DistBackendError and ValueError, or TensorFlow's AbortedError and
    FailedPreconditionError, which have only a text, to get the fields of the fault.
    """
    return EngineFault.of(next(filter(None, (engine.fault() for engine, _ in _live)), None))


def reason_of(name: str, error: BaseException) -> str:
    """Return the reason of an abort: "NAME raised ValueError: text", on one line.

    It has at most 1,000 characters. `name` is this rank's name in messages.
    """
    text = " ".join(unwrap_message(str(error)).split())
    kind = f"{name} raised {type(error).__name__}"
    return f"{kind}: {text}"[:_MAX_REASON] if text else kind


def _shut_down_engines() -> None:
    """Shut down all engines of this process when it ends.

    If an exception ends the process, the engines are aborted first, with the exception as reason.
    """
    error = getattr(sys, "last_value", None)
    if error is not None:
        _record(error)
    else:
        for function in _beforehand:
            function()
    while _live:
        engine, name = _live.pop()
        if error is not None:
            engine.abort(reason_of(name, error), json.dumps(_named(error)))
        engine.shutdown()
    for function in _afterwards:
        function()


def _named(error: BaseException) -> dict[str, Any]:
    fields = error.as_dict() if isinstance(error, DistError) else {"kind": "raised"}
    return {
        "exception": type(error).__name__,
        "kind": fields["kind"],
        "about": fields.get("about"),
    }


def _record(error: BaseException) -> None:
    """Write a JSON description of the exception that ends this rank to a file.

    It contains the error's kind, for example, and the rank that caused the error. The rank guard,
    which is the parent process of the rank, reads the file. Write nothing if there is no guard.
    """
    path, fault = read_fault_file(), last_fault()
    if path is None:
        return
    culprit = getattr(error, "culprit", getattr(error, "rank", None))
    fields: dict[str, Any] = {**_named(error), "culprit": culprit}
    if fault is not None:
        fields |= {"kind": fault.kind, "culprit": fault.culprit, "operation": fault.operation}
        if fault.late_ranks:
            fields["late_ranks"] = fault.late_ranks
    with suppress(OSError):  # without the file the launcher reads the traceback
        path.write_text(json.dumps(fields), encoding="utf-8")


def _close_in_child() -> None:
    """Close the engines' connections in a forked child, such as a DataLoader worker."""
    for engine, _ in _live:
        engine.close_in_child()
        # one more reference, so that the child never destroys it: its threads are the parent's
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
        _inherited.append(engine)
    _live.clear()
