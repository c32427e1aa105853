# SPDX-License-Identifier: Apache-2.0
"""Operations that carry a name: ranks match them by it, whatever the order of their calls.

A call brings its name (the compiled class NamedStarts). When all ranks have brought it, one thread
of this process carries the operation out, in the order that all ranks share. This thread alone uses
the communicator of named operations, so that all of its collectives are numbered as ever: those of
an operation which first exchanges shapes, too, and those which exchange what ranks have called.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

import torch

from smdist.dataparallel.rendezvous.engine_shutdown import call_after_shutdown
from smdist.dataparallel.torch.horovod.hvd_errors import HorovodInternalError, never_started

Finish = Callable[[list[torch.Tensor]], Any]
# Function that starts an operation of a communicator: returns what it has started, and the function
# from the buffers to the result.
Begin = Callable[[Any], tuple[list[Any], Finish]]

_STOP_SECONDS: Final = 5.0  # within which a thread ends whose engine was shut down
_live: Final = weakref.WeakSet[Any]()


class NamedOperation:
    """Operation that carries a name, from its call to its result.

    Args:
        shown: The call in errors, such as "allreduce(name='x', (2,) float32)".
        begin: Function that starts it, on the thread of named operations.
        like: A tensor on the device of the operation.
    """

    def __init__(self, shown: str, begin: Begin, like: torch.Tensor) -> None:
        self.shown, self.begin = shown, begin
        self.parts: list[Any] = []
        self.finish: Finish = list
        self._stream = torch.cuda.current_stream(like.device) if like.is_cuda else None
        self._has_ended = threading.Event()
        self._buffers: list[torch.Tensor] = []
        self._error: Exception | None = None

    def on_stream(self) -> AbstractContextManager[Any]:
        """Return a context in which work on a GPU follows that of the caller."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def end(self, buffers: list[torch.Tensor], error: Exception | None = None) -> None:
        """Let wait() return what `finish` makes of the buffers, or raise the error."""
        self._buffers, self._error = buffers, error
        self._has_ended.set()

    def is_done(self) -> bool:
        """Return True if wait() does not wait."""
        return self._has_ended.is_set()

    def wait_for_end(self) -> None:
        """Wait until the operation has ended or failed."""
        self._has_ended.wait()

    def wait(self) -> Any:
        """Wait for the operation and return its result.

        Raises:
            HorovodMismatchError: Ranks called different things under this name.
            HorovodInternalError: A rank was lost.
        """
        self._has_ended.wait()
        if self._error is not None:
            raise self._error
        return self.finish(self._buffers)


class NamedOperations:
    """Named operations of the ranks of one process set. Its methods may be called by any thread.

    Args:
        starts: Names that ranks have brought (the compiled class NamedStarts).
        communicator: Communicator of these ranks that nothing else uses.
    """

    def __init__(self, starts: Any, communicator: Any) -> None:
        self._starts, self._communicator = starts, communicator
        self._numbers = itertools.count(1)
        self._open: dict[int, NamedOperation] = {}  # operations that have not ended, by number
        self._thread = threading.Thread(target=self._run, name="smdist-named", daemon=True)
        self._thread.start()
        _live.add(self)
        _close_all_at_exit()

    def call(self, name: str, operation: NamedOperation) -> NamedOperation:
        """Carry the operation out as soon as all ranks have called one of this name."""
        number = next(self._numbers)
        self._open[number] = operation
        try:
            self._starts.bring(name, number)
        except BaseException:
            del self._open[number]
            raise
        return operation

    def drain(self) -> None:
        """Wait until all operations that this rank has called have ended."""
        for each in list(self._open.values()):
            each.wait_for_end()

    def join(self) -> Any:
        """Let operations of the others start without this rank; return the communicator.

        The engine has to answer their all-reduces, until all ranks have joined.
        """
        self.drain()
        self._starts.join()
        return self._communicator

    def close(self) -> None:
        """End the thread; operations that have not ended fail."""
        self._starts.close()
        for each in list(self._open.values()):
            each.end([], HorovodInternalError(
                f"{each.shown} has not ended", "shutdown() was called", "Wait for operations first",
                kind="shutdown",
            ))  # fmt: skip
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        with torch.no_grad():
            while (event := self._starts.take()) is not None:
                number, error = event
                if number < 0:
                    self._end(-number)
                elif error is not None:
                    self._fail(number, never_started(self._open[number].shown, error))
                else:
                    self._start(number)

    def _start(self, number: int) -> None:
        operation = self._open[number]
        try:
            with operation.on_stream():
                operation.parts, operation.finish = operation.begin(self._communicator)
            last = operation.parts[-1].work.get_future()
        except Exception as error:  # raised by wait(), on another thread
            self._fail(number, error)
            return
        last.add_done_callback(lambda _: self._starts.put(-number))

    def _end(self, number: int) -> None:
        operation = self._open[number]
        try:
            with operation.on_stream():
                buffers = [self._communicator.wait(each) for each in operation.parts]
        except Exception as error:
            self._fail(number, error)
            return
        self._open.pop(number).end(buffers)

    def _fail(self, number: int, error: Exception) -> None:
        self._open.pop(number).end([], error)


@cache
def _close_all_at_exit() -> None:
    """End the threads before the interpreter ends; only the first call has an effect."""
    call_after_shutdown(_close_all)


def _close_all() -> None:
    for each in list(_live):
        each.close()
