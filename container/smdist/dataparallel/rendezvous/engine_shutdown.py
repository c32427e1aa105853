# SPDX-License-Identifier: Apache-2.0
"""Shutdown of this process's engines: at its end, and in a forked child."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from sagemaker_dist.errors import DistError
from smdist.config import read_fault_file
from smdist.dataparallel.rendezvous.clean_tf_error import plain
from smdist.dataparallel.rendezvous.engine_interface import Engine, EngineFault

_MOST_WORDS = 1000  # maximum length of an abort reason, in characters
_live: list[tuple[Engine, str]] = []  # running engines, with the name of this rank in messages
# engines of the parent, kept in a forked child: never used, never destroyed
_left_to_the_parent: list[Engine] = []


def keep(engine: Engine, name: str) -> None:
    """Register the engine, so that it is shut down when this process ends.

    Args:
        name: The name of this rank in the messages of other ranks.
    """
    see_to_the_end()
    _live[:] = [each for each in _live if each[0].is_running()] + [(engine, name)]


@cache
def see_to_the_end() -> None:
    """Register the shutdown of engines at process exit, once in a process.

    Exit handlers that are registered after this call run before the shutdown.
    """
    atexit.register(_say_goodbye)
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def abort(reason: str, details: str = "") -> None:
    """Fail all that is on its way and all that comes later, here and on all other ranks.

    Errors on all of them say `reason`, and `last_fault` has `details`; the first failure of an
    engine wins.
    """
    for engine, _ in _live:
        if engine.is_running():
            engine.abort(reason, details)


def last_fault() -> EngineFault | None:
    """Return why an engine of this process has ended, if one has.

    Exceptions of torch and TensorFlow carry a text alone: after a DistBackendError or an
    AbortedError, the fields of the fault are here.
    """
    found = next(filter(None, (engine.fault() for engine, _ in _live)), None)
    if found is None:
        return None
    kind, culprit, operation, text, details = found
    return EngineFault(kind=kind, culprit=culprit, operation=operation, text=text, details=details)


def reason_of(name: str, error: BaseException) -> str:
    """Return the reason of an abort on one line, short enough for logs and other ranks."""
    text = " ".join(plain(str(error)).split())
    kind = f"{name} raised {type(error).__name__}"
    return f"{kind}: {text}"[:_MOST_WORDS] if text else kind


def _say_goodbye() -> None:
    """Shut down all engines; abort them first if this process ends by an exception."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        _record(error)
    while _live:
        engine, name = _live.pop()
        if error is not None:
            engine.abort(reason_of(name, error), json.dumps(_named(error)))
        engine.shutdown()


def _named(error: BaseException) -> dict[str, Any]:
    fields = error.as_dict() if isinstance(error, DistError) else {"kind": "raised"}
    return {"exception": type(error).__name__, "kind": fields["kind"]}


def _record(error: BaseException) -> None:
    """Leave the fields of the exception that ends this rank where its guard reads them."""
    path, fault = read_fault_file(), last_fault()
    if path is None:
        return
    fields: dict[str, Any] = {**_named(error), "culprit": getattr(error, "rank", None)}
    if fault is not None:
        fields |= {"kind": fault.kind, "culprit": fault.culprit, "operation": fault.operation}
    with suppress(OSError):  # the launcher then goes by the traceback
        path.write_text(json.dumps(fields), encoding="utf-8")


def _leave_to_the_parent() -> None:
    """Close the engines' connections in a forked child, such as a DataLoader worker."""
    for engine, _ in _live:
        engine.close_in_child()
        # the child must not destroy it: its threads live in the parent
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
        _left_to_the_parent.append(engine)
    _live.clear()
