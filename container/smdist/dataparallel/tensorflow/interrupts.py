# SPDX-License-Identifier: Apache-2.0
"""Handling of Ctrl-C while a tf.function waits for other ranks.

Python raises KeyboardInterrupt only when the main thread runs Python code again, and not while
it waits inside TensorFlow. So a thread reads signals, too:

    SIGINT ──► Python's flag ──► KeyboardInterrupt, when the main thread runs Python code
        └────► a pipe ──► a thread, which aborts the engine if the main thread stays inside
                          TensorFlow and no collective ends
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

_STUCK_SECONDS: Final = 1.0  # without the end of a collective
_POLL_SECONDS: Final = 0.1
_KINDS: Final = ("all_reduce", "broadcast", "all_gather", "all_to_all", "reduce_scatter", "barrier")

_open: list[int] = []  # write ends of the pipes to which Python writes signal numbers


class Watch:
    """Thread that aborts the engine if Ctrl-C cannot interrupt a collective.

    It does nothing if the script handles SIGINT itself, or if init() was called outside of the
    main thread, because only the main thread may set up signals.

    Args:
        engine: The engine to abort.
        name: Name of this rank in messages, such as "rank 3 on algo-2".
        module: The compiled module, which counts operations.
    """

    def __init__(self, engine: Engine, name: str, module: Any) -> None:
        self._engine, self._name, self._module = engine, name, module
        self._before = self._signals = -1
        if threading.current_thread() is threading.main_thread():
            self._begin()

    def stop(self) -> None:
        """Stop the thread; if called outside of the main thread, do nothing."""
        if self._signals < 0 or threading.current_thread() is not threading.main_thread():
            return
        last = signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        if last == self._signals:
            _open.remove(last)
            os.close(last)
        else:  # another library has replaced this pipe and may still write to it: keep it open
            signal.set_wakeup_fd(last, warn_on_full_buffer=False)
        self._signals = -1

    def _begin(self) -> None:
        ours, self._signals = os.pipe()
        os.set_blocking(self._signals, False)
        self._before = signal.set_wakeup_fd(self._signals, warn_on_full_buffer=False)
        _open.append(self._signals)
        _register_fork_handler()
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
                self._abort_if_stuck()
        os.close(pipe)

    def _abort_if_stuck(self) -> None:
        place, seen, since = _main_position(), num_ended(self._module), time.monotonic()
        while self._engine.is_running() and place == _main_position():
            time.sleep(_POLL_SECONDS)
            now = num_ended(self._module)
            if now != seen or self._module.under_way() == 0:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > _STUCK_SECONDS:
                self._engine.abort(f"{self._name} was interrupted with Ctrl-C")


def num_ended(module: Any) -> int:
    """Return the number of collectives that have ended in this process.

    `module` is the compiled module, which counts them.
    """
    return sum(module.activity(kind)[0] for kind in _KINDS)


@cache
def _register_fork_handler() -> None:
    os.register_at_fork(after_in_child=_reset_in_child)


def _reset_in_child() -> None:
    """Stop Python in a forked child from writing signal numbers to a pipe of its parent.

    A thread of the parent reads this pipe and would handle the child's signals as its own.
    """
    if _open and (last := signal.set_wakeup_fd(-1)) not in _open:
        signal.set_wakeup_fd(last)


def _main_position() -> tuple[Any, int]:
    """Return the main thread's frame, and the index of its last instruction there.

    The result does not change while the main thread is inside a call of TensorFlow.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return frame, frame.f_lasti if frame else -1
