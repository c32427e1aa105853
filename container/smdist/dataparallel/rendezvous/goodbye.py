# SPDX-License-Identifier: Apache-2.0
"""The engines of this process, and how it leaves them: at its end, and in a forked child."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
from functools import cache

from smdist.dataparallel.rendezvous.engine import Engine
from smdist.dataparallel.rendezvous.plain import plain

_MOST_WORDS = 1000  # characters of the reason why a rank ends
_live: list[tuple[Engine, str]] = []  # engines, with what others call this rank
_left_to_the_parent: list[Engine] = []  # in a forked child: never used, never destroyed


def keep(engine: Engine, name: str) -> None:
    """From now on the engine is said goodbye to at the end of this process.

    Args:
        name: What others call this rank.
    """
    see_to_the_end()
    _live[:] = [each for each in _live if each[0].is_running()] + [(engine, name)]


@cache
def see_to_the_end() -> None:
    """Once in a process. What it registers for its end later than this is done before goodbye."""
    atexit.register(_say_goodbye)
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def abort(reason: str) -> None:
    """Fail all that is on its way and all that comes later, here and on all other ranks.

    Errors on all of them say `reason`; the first failure of an engine wins.
    """
    for engine, _ in _live:
        if engine.is_running():
            engine.abort(reason)


def reason_of(name: str, error: BaseException) -> str:
    """Why a rank ends, on one line: logs and other ranks may keep no more of it."""
    text = " ".join(plain(str(error)).split())
    kind = f"{name} raised {type(error).__name__}"
    return f"{kind}: {text}"[:_MOST_WORDS] if text else kind


def _say_goodbye() -> None:
    """Tell the others why this rank ends: it raised, or it has simply finished."""
    error = getattr(sys, "last_value", None)
    while _live:
        engine, name = _live.pop()
        if error is not None:
            engine.abort(reason_of(name, error))
        engine.shutdown()


def _leave_to_the_parent() -> None:
    """A forked child, such as a DataLoader worker, must not keep the rank's connections open."""
    for engine, _ in _live:
        engine.close_in_child()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))  # its threads are not here to join
        _left_to_the_parent.append(engine)
    _live.clear()
