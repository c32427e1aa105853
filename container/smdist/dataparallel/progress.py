# SPDX-License-Identifier: Apache-2.0
"""What a training says of itself: a line every ten seconds, for people and for SageMaker.

    smdist: step=200 loss=0.6931 samples_per_second=1234.5 steps_per_second=4.8 all_reduce_ms=12.3

Rank 0 alone prints, between two steps of its own: no thread, no message to other ranks, and
a reported tensor is read when the line is printed. What is not known is left out. The line
and what reads it come from sagemaker_dist.contract; docs/metrics.md says what each figure
means.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final

from sagemaker_dist.contract.metrics import (
    SAMPLES_PER_SECOND,
    STEP,
    STEPS_PER_SECOND,
    TIMED,
    render_line,
)

EVERY_SECONDS: Final = 10.0
_Activity = dict[str, tuple[int, float]]  # by kind: operations that ended, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """How far a training was at some time."""

    seconds: float
    step: int
    samples: int
    unknown: int  # passes of an unknown number of samples
    activity: _Activity


class Progress:
    """How one training goes on. Thread safety: none; it belongs to the thread that trains.

    Rates are between the beginnings of steps, so that the time before the first step and
    after the last one does not count.

    Args:
        activity: Says of a kind of operation how many have ended, and in how many seconds.
        counts: Whether forward() is called; else a step is what the script reports as one.
        is_timed: Whether the training's collectives are those that the engine measures.
        every_seconds: Time between two lines, at least.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        activity: Callable[[str], tuple[int, float]],
        *,
        counts: bool,
        is_timed: bool = True,
        every_seconds: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._activity, self._counts, self._is_timed = activity, counts, is_timed
        self._every, self._clock = every_seconds, clock
        self._base: _Mark | None = None  # where the last line left off
        self._here: _Mark | None = None  # the beginning of the latest step
        self._begun = self._printed = 0  # steps
        self._samples = self._unknown = 0
        self._reported: dict[str, Any] = {}  # since the last line

    def forward(self, samples: int | None, *, is_step: bool) -> None:
        """A forward pass begins, with so many samples on all ranks, None: not known."""
        if is_step:
            self._arrive(self._begun)
            self._begun += 1
        self._samples += samples or 0
        self._unknown += samples is None

    def report(self, values: Mapping[str, Any]) -> None:
        """Keep what the script knows for the next line, and no graph with it."""
        self._reported.update({name: self.kept(value) for name, value in values.items()})
        if not self._counts:
            self._is_timed = self._is_timed and all(map(self.is_on_cpu, values.values()))
            known = self._here.step if self._here else 0
            self._arrive(int(values.get(STEP, known)))

    def flush(self) -> None:
        """Print what is new since the last line, if anything is; raise nothing."""
        if not self._reported and self._begun == self._printed:
            return
        reported = {name: self.number(value) for name, value in self._reported.items()}
        known = {name: number for name, number in reported.items() if number is not None}
        line = render_line(self._measured() | known)
        self._reported.clear()
        self._start_from_here()
        with suppress(Exception):  # nobody listens, or a script's own stdout: no reason to stop
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def is_on_cpu(self, value: Any) -> bool:  # noqa: ARG002  a framework's own numbers may not be
        """Whether a reported value was made where the engine's times hold."""
        return True

    def kept(self, value: Any) -> Any:
        """The same as a plain number, or as what number() can read later."""
        return int(value) if isinstance(value, Integral) else float(value)

    def number(self, value: int | float) -> int | float | None:
        """What a line says of what was kept; None if it cannot be read."""
        return value

    def _arrive(self, step: int) -> None:
        before, self._here = self._here, self._mark(step)
        is_again = before is not None and step < before.step  # the script's own numbers
        if self._base is None or is_again:
            self._start_from_here()
        elif self._here.seconds - self._base.seconds >= self._every:
            self.flush()

    def _mark(self, step: int) -> _Mark:
        activity = {kind: self._activity(kind) for kind in TIMED}
        return _Mark(
            seconds=self._clock(),
            step=step,
            samples=self._samples,
            unknown=self._unknown,
            activity=activity,
        )

    def _start_from_here(self) -> None:
        self._base, self._printed = self._here, self._begun

    def _measured(self) -> dict[str, float]:
        fields: dict[str, float] = {STEP: self._begun} if self._counts else {}
        if self._here is None or self._base is None:
            return fields
        steps = self._here.step - self._base.step
        seconds = self._here.seconds - self._base.seconds
        if steps > 0 and seconds > 0:
            fields[STEPS_PER_SECOND] = steps / seconds
            samples = self._here.samples - self._base.samples
            if samples > 0 and self._here.unknown == self._base.unknown:
                fields[SAMPLES_PER_SECOND] = samples / seconds
            if self._is_timed:
                fields |= _milliseconds(self._base.activity, self._here.activity, steps)
        return fields


def _milliseconds(before: _Activity, after: _Activity, steps: int) -> dict[str, float]:
    """Of each step, with an operation of some kind under way, for every kind that there was."""
    return {
        f"{kind}_ms": (seconds - before[kind][1]) * 1e3 / steps
        for kind, (operations, seconds) in after.items()
        if operations > before[kind][0]
    }
