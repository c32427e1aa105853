# SPDX-License-Identifier: Apache-2.0
"""Progress line of a training, printed every ten seconds for people and for SageMaker.

    smdist: step=200 loss=0.6931 samples_per_second=1234.5 steps_per_second=4.8 all_reduce_ms=12.3

Only rank 0 prints, between two of its steps. No thread runs and no message goes to other
ranks. A reported tensor is read when the line is printed, and an unknown figure is left out.
sagemaker_dist.contract defines the format of the line and parses it; docs/metrics.md explains
each figure.
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
# by kind of operation: number of completed operations, seconds
_Activity = dict[str, tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """State of a training at one time."""

    seconds: float
    step: int
    samples: int
    unknown: int  # forward passes whose number of samples is unknown
    activity: _Activity


class ProgressLine:
    """Progress of one training. Thread safety: none; only the training thread may use it.

    Rates are measured between the starts of steps, so the time before the first step and
    after the last one does not count.

    Args:
        activity: Function from a kind of operation to the number of completed operations and
            their seconds.
        counts: Whether forward() is called for each pass; if not, report(step=) defines steps.
        is_timed: Whether the engine runs the training's collectives, so that it can time them.
        every_seconds: Minimum time between two lines.
        clock: Monotonic clock, in seconds.
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
        self._base: _Mark | None = None  # state when the last line was printed
        self._here: _Mark | None = None  # state at the start of the latest step
        self._begun = self._printed = 0  # numbers of steps
        self._samples = self._unknown = 0
        self._reported: dict[str, Any] = {}  # values reported since the last line

    def forward(self, samples: int | None, *, is_step: bool) -> None:
        """Record the start of a forward pass.

        Args:
            samples: Number of samples on all ranks, or None if unknown.
            is_step: Whether a training step starts with this pass.
        """
        if is_step:
            self._arrive(self._begun)
            self._begun += 1
        self._samples += samples or 0
        self._unknown += samples is None

    def report(self, values: Mapping[str, Any]) -> None:
        """Store reported values for the next line, without their autograd graphs."""
        self._reported.update({name: self.kept(value) for name, value in values.items()})
        if not self._counts:
            self._is_timed = self._is_timed and all(map(self.is_on_cpu, values.values()))
            known = self._here.step if self._here else 0
            self._arrive(int(values.get(STEP, known)))

    def flush(self) -> None:
        """Print a line if there is news since the last one. Raises nothing."""
        if not self._reported and self._begun == self._printed:
            return
        reported = {name: self.number(value) for name, value in self._reported.items()}
        known = {name: number for name, number in reported.items() if number is not None}
        line = render_line(self._measured() | known)
        self._reported.clear()
        self._start_from_here()
        # stdout may be closed or replaced by the script; training must go on
        with suppress(Exception):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def is_on_cpu(self, value: Any) -> bool:  # noqa: ARG002  a framework's own numbers may not be
        """Return whether the value lives on the CPU, where the engine's times are valid."""
        return True

    def kept(self, value: Any) -> Any:
        """Return the value as a plain number, or in a form that number() can read later."""
        return int(value) if isinstance(value, Integral) else float(value)

    def number(self, value: int | float) -> int | float | None:
        """Return the number to print for a stored value, or None if it cannot be read."""
        return value

    def _arrive(self, step: int) -> None:
        before, self._here = self._here, self._mark(step)
        is_again = before is not None and step < before.step  # the script's step number went back
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
    """Return the milliseconds per step during which operations of each kind ran.

    A kind without a completed operation is left out.
    """
    return {
        f"{kind}_ms": (seconds - before[kind][1]) * 1e3 / steps
        for kind, (operations, seconds) in after.items()
        if operations > before[kind][0]
    }
