# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a tf.function that waits for other ranks: Python hears it when the function ends.

SIGINT ──► Python's flag ──► KeyboardInterrupt, as soon as the main thread is back in Python
    └────► a pipe ──► a thread: is it not back, and does no collective end? They fail
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import cache
from typing import Any, Final

from smdist.dataparallel.rendezvous.engine import Engine

_PATIENCE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1
_KINDS: Final = ("all_reduce", "broadcast", "all_gather", "all_to_all", "reduce_scatter", "barrier")

_open: list[int] = []  # ends of pipes that Python writes signals to


class Watch:
    """Aborts an engine if Ctrl-C cannot interrupt what waits for it.

    Does nothing where the program handles SIGINT itself, or where init() was called in
    another thread than the main one, which alone may listen to signals.

    Args:
        name: What others call this rank.
        module: The compiled one, with its activity.
    """

    def __init__(self, engine: Engine, name: str, module: Any) -> None:
        self._engine, self._name, self._module = engine, name, module
        self._before = self._signals = -1
        if threading.current_thread() is threading.main_thread():
            self._begin()

    def stop(self) -> None:
        """Listen no more; in another thread than the main one the pipe stays, unused."""
        if self._signals < 0 or threading.current_thread() is not threading.main_thread():
            return
        last = signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        if last == self._signals:
            _open.remove(last)
            os.close(last)
        else:  # of somebody who came later, and knows ours
            signal.set_wakeup_fd(last, warn_on_full_buffer=False)
        self._signals = -1

    def _begin(self) -> None:
        ours, self._signals = os.pipe()
        os.set_blocking(self._signals, False)
        self._before = signal.set_wakeup_fd(self._signals, warn_on_full_buffer=False)
        _open.append(self._signals)
        _see_to_forks()
        threading.Thread(
            target=self._listen, args=(ours,), name="smdist-ctrl-c", daemon=True
        ).start()

    def _listen(self, pipe: int) -> None:
        while numbers := os.read(pipe, 64):
            if self._before >= 0:
                with suppress(OSError):
                    os.write(self._before, numbers)
            handler = signal.getsignal(signal.SIGINT)
            if signal.SIGINT in numbers and handler is signal.default_int_handler:
                self._see_it_through()
        os.close(pipe)

    def _see_it_through(self) -> None:
        place, seen, since = _place(), num_ended(self._module), time.monotonic()
        while self._engine.is_running() and place == _place():
            time.sleep(_LOOK_SECONDS)
            now = num_ended(self._module)
            if now != seen or self._module.under_way() == 0:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _PATIENCE_SECONDS:
                self._engine.abort(f"Ctrl-C on {self._name}")


def num_ended(module: Any) -> int:
    """How many collectives of this process have ended, by the compiled module's count."""
    return sum(module.activity(kind)[0] for kind in _KINDS)


@cache
def _see_to_forks() -> None:
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _leave_to_the_parent() -> None:
    """A forked child's signals are not the rank's."""
    if _open and (last := signal.set_wakeup_fd(-1)) not in _open:
        signal.set_wakeup_fd(last)


def _place() -> tuple[Any, int]:
    """Where the main thread is in Python; it stays there while it waits for TensorFlow."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, frame.f_lasti if frame else -1
