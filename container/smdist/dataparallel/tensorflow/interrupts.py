# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a tf.function that waits for other ranks, which Python handles only after it ends.

SIGINT ──► Python's flag ──► KeyboardInterrupt, as soon as the main thread is back in Python
    └────► a pipe ──► a thread, which aborts the engine if the main thread does not come back
                      and no collective ends
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

from smdist.dataparallel.rendezvous.engine_interface import Engine

_PATIENCE_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.1
_KINDS: Final = ("all_reduce", "broadcast", "all_gather", "all_to_all", "reduce_scatter", "barrier")

_open: list[int] = []  # write ends of the pipes that receive signal numbers from Python


class Watch:
    """Thread that aborts the engine if Ctrl-C cannot interrupt a collective.

    The thread does nothing if the program handles SIGINT itself, or if init() was called outside
    of the main thread, because only the main thread may set up signals.

    Args:
        name: The name of this rank in the messages of other ranks.
        module: The compiled module, which counts operations.
    """

    def __init__(self, engine: Engine, name: str, module: Any) -> None:
        self._engine, self._name, self._module = engine, name, module
        self._before = self._signals = -1
        if threading.current_thread() is threading.main_thread():
            self._begin()

    def stop(self) -> None:
        """Stop watching for signals; outside of the main thread the pipe stays open, unused."""
        if self._signals < 0 or threading.current_thread() is not threading.main_thread():
            return
        last = signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        if last == self._signals:
            _open.remove(last)
            os.close(last)
        else:  # a later handler replaced this pipe and may write to it: keep it open
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
    """Return the number of collectives that have ended in this process."""
    return sum(module.activity(kind)[0] for kind in _KINDS)


@cache
def _see_to_forks() -> None:
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _leave_to_the_parent() -> None:
    """Restore signal handling in a forked child, so that its signals do not abort the rank."""
    if _open and (last := signal.set_wakeup_fd(-1)) not in _open:
        signal.set_wakeup_fd(last)


def _place() -> tuple[Any, int]:
    """Return where the main thread is in Python; it stays there while it waits for TensorFlow."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, frame.f_lasti if frame else -1
