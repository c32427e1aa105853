# SPDX-License-Identifier: Apache-2.0
"""State of the interruption of this rank, and the functions that scripts call.

    SIGTERM ──▶ a flag of this rank ──▶ step() of all ranks: any flag? ──▶ save() ──▶ exit code 143

Each rank may receive SIGTERM in a different step. All ranks therefore compare their flags at the
same call of step() or should_stop(), by one all-reduce of a number, and all save that step.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

from sagemaker_dist.errors import require
from smdist.checkpoint.rank_agreement import any_rank

EXIT_CODE: Final = 128 + signal.SIGTERM
Save = TypeVar("Save", bound=Callable[[], object])


class Interruption:
    """Interruption of this rank by SIGTERM. Thread safety: none; main thread only.

    Attributes:
        is_agreed: True once all ranks know that a rank was interrupted.
    """

    def __init__(self) -> None:
        self._save: Callable[[], object] | None = None
        self._is_installed = False
        self._before: Any = None  # handler of SIGTERM before ours
        self._is_requested = False
        self._calls = 0
        self.is_agreed = False

    def install(self, function: str) -> None:
        """Install the handler of SIGTERM, once; `function` is the caller's name in errors.

        Raises:
            OptionError: This is not the main thread, where Python handles signals.
        """
        require(
            threading.current_thread() is threading.main_thread(),
            what=f"{function} was called outside of the main thread",
            why="Python handles signals only in the main thread",
            hint=f"Call {function} in the main thread",
            about=function,
            kind="thread",
        )
        if not self._is_installed:
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            self._is_installed = True

    def set_save(self, save: Callable[[], object]) -> None:
        """Set the function that saves; it replaces the one before."""
        self._save = save

    def check(self, function: str, every: int) -> bool:
        """Return True if any rank was interrupted; all ranks return the same.

        Ranks compare their flags at each call whose number is a multiple of `every`.
        """
        require(
            isinstance(every, int) and not isinstance(every, bool) and every > 0,
            what=f"every is {every!r}",
            why="it must be the number of calls between two comparisons of all ranks",
            hint="Pass a positive integer, such as 1",
            about="every",
        )
        self.install(function)
        self._calls += 1
        if not self.is_agreed and self._calls % every == 0:
            self.is_agreed = any_rank(self._is_requested)
        return self.is_agreed

    def save_and_exit(self) -> None:
        """Save on this rank, wait until all ranks have saved, and end this process.

        Raises:
            SystemExit: Always, with EXIT_CODE.
        """
        assert self._save
        self._save()
        any_rank(False)  # a rank that ends early would take its process group from the others
        sys.exit(EXIT_CODE)

    @property
    def has_save(self) -> bool:
        """True if a function that saves was set."""
        return self._save is not None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._is_requested = True
        if callable(self._before):
            self._before(number, frame)


_interruption = Interruption()


def on_interrupt(save: Save) -> Save:
    """Set the function that saves this rank's state at an interruption, and return it.

    Use it as a decorator, or call it. It installs a handler of SIGTERM, which also calls the
    handler that was there before. `save` is called without arguments, once, on every rank, by
    `step`; it may use collectives. Another call replaces the function.

    Raises:
        OptionError: `save` cannot be called, or this is not the main thread.
    """
    require(
        callable(save),
        what=f"save is {save!r}",
        why="it must be a function without arguments that saves a checkpoint",
        hint="Pass such a function, or use @smdist.checkpoint.on_interrupt before one",
        about="save",
        kind="type",
    )
    _interruption.install("on_interrupt")
    _interruption.set_save(save)
    return save


def step(every: int = 1) -> None:
    """Mark the end of a step; if any rank was interrupted, save on all ranks and exit.

    All ranks must call it equally often, at the same places of the script. Ranks compare in one
    all-reduce of a number whether any of them has received SIGTERM. Then each calls the function of
    `on_interrupt`, waits for the others, and ends with exit code 143 (SystemExit), as SageMaker
    expects of a job that was stopped.

    Args:
        every: Number of calls between two comparisons. Default 1. A comparison takes about as long
            as the smallest all-reduce; with steps of less than 10 ms, pass 10 or more.

    Raises:
        OptionError: on_interrupt was not called, `every` is not a positive integer, or the ranks
            are not connected yet.
        SystemExit: The ranks have saved.
    """
    require(
        _interruption.has_save,
        what="step() was called, and on_interrupt() was not",
        why="no function says how to save",
        hint="Call smdist.checkpoint.on_interrupt(save) first, or use should_stop()",
        about="on_interrupt",
        kind="missing",
    )
    if _interruption.check("step", every):
        _interruption.save_and_exit()


def should_stop(every: int = 1) -> bool:
    """Return True if any rank was interrupted; the script then saves and ends by itself.

    All ranks must call it equally often, at the same places of the script, and get the same result.
    After True, it stays True without further communication. The first call installs the handler of
    SIGTERM. A script that has saved should end with exit code 143, `smdist.checkpoint.EXIT_CODE`.

    Args:
        every: Number of calls between two comparisons of all ranks. Default 1.

    Raises:
        OptionError: `every` is not a positive integer, the ranks are not connected yet, or this is
            not the main thread.
    """
    return _interruption.check("should_stop", every)
