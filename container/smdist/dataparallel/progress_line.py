# SPDX-License-Identifier: Apache-2.0
"""Progress line of a training, printed every ten seconds for people and for SageMaker.

    smdist: step=200 loss=0.6931 samples_per_second=1234.5 steps_per_second=4.8 all_reduce_ms=12.3

Only rank 0 prints, between two of its steps, without a thread and without messages to other
ranks. A reported tensor is read when the line is printed; a number that is not known is left
out. `sagemaker_dist.contract.metrics` defines the format of the line; docs/metrics.md explains
each number.
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
# kind of operation -> (number of completed operations, seconds during which any was running)
_Activity = dict[str, tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """Counters of a training at the start of a step; rates are differences of two snapshots."""

    seconds: float  # time on the clock
    step: int
    samples: int
    unknown: int  # forward passes whose number of samples is unknown
    activity: _Activity


class ProgressLine:
    """Counts the steps and samples of one training, and prints its progress lines.

    Rates are measured between the starts of steps, so the time before the first step and
    after the last one does not count. Thread safety: none; only the training thread may use it.

    Args:
        activity: Function that takes a kind of operation, such as "all_reduce", and returns the
            number of completed operations and the seconds during which any was running.
        counts: True if forward() is called for each forward pass and so counts steps; False if
            report(step=) does.
        is_timed: True if the engine runs the training's collectives, so that it can time them.
        every_seconds: Minimum number of seconds between two lines.
        clock: Function that returns the seconds of a monotonic clock.
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
        self._base: _Snapshot | None = None  # when the last line was printed
        self._latest: _Snapshot | None = None  # at the start of the latest step
        self._steps_begun = self._steps_printed = 0
        self._samples = self._unknown = 0
        self._reported: dict[str, Any] = {}  # values reported since the last line

    def forward(self, samples: int | None, *, is_step: bool) -> None:
        """Count a forward pass that starts now; print a progress line if one is due.

        Args:
            samples: Number of samples of the pass on all ranks, or None if unknown.
            is_step: True if a training step starts with this pass.
        """
        if is_step:
            self._begin_step(self._steps_begun)
            self._steps_begun += 1
        self._samples += samples or 0
        self._unknown += samples is None

    def report(self, values: Mapping[str, Any]) -> None:
        """Store reported values, by name, for the next line, without their autograd graphs.

        If forward() does not count the steps, a step starts now; its number is the value of "step".
        """
        self._reported.update({name: self.kept(value) for name, value in values.items()})
        if not self._counts:
            self._is_timed = self._is_timed and all(map(self.is_on_cpu, values.values()))
            known = self._latest.step if self._latest else 0
            self._begin_step(int(values.get(STEP, known)))

    def flush(self) -> None:
        """Print a line if a step began or a value was reported since the last one.

        No error of printing reaches the script.
        """
        if not self._reported and self._steps_begun == self._steps_printed:
            return
        reported = {name: self.number(value) for name, value in self._reported.items()}
        known = {name: number for name, number in reported.items() if number is not None}
        line = render_line(self._measured() | known)
        self._reported.clear()
        self._restart_measurement()
        # stdout may be closed or replaced by the script; training must go on
        with suppress(Exception):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()

    def is_on_cpu(self, value: Any) -> bool:  # noqa: ARG002  a framework's own numbers may not be
        """Return True if a reported value is in CPU memory.

        If any value is not, the lines show no times of collectives.
        """
        return True

    def kept(self, value: Any) -> Any:
        """Return a reported value in the form in which it is stored until the next line.

        Here this is a number; a subclass may store a tensor, which its number() reads later.
        """
        return int(value) if isinstance(value, Integral) else float(value)

    def number(self, value: int | float) -> int | float | None:
        """Return the number to print for a stored value, or None if it cannot be read."""
        return value

    def _begin_step(self, step: int) -> None:
        before, self._latest = self._latest, self._snapshot(step)
        # the script restarted its step numbers
        is_smaller = before is not None and step < before.step
        if self._base is None or is_smaller:
            self._restart_measurement()
        elif self._latest.seconds - self._base.seconds >= self._every:
            self.flush()

    def _snapshot(self, step: int) -> _Snapshot:
        activity = {kind: self._activity(kind) for kind in TIMED}
        return _Snapshot(
            seconds=self._clock(),
            step=step,
            samples=self._samples,
            unknown=self._unknown,
            activity=activity,
        )

    def _restart_measurement(self) -> None:
        self._base, self._steps_printed = self._latest, self._steps_begun

    def _measured(self) -> dict[str, float]:
        fields: dict[str, float] = {STEP: self._steps_begun} if self._counts else {}
        if self._latest is None or self._base is None:
            return fields
        steps = self._latest.step - self._base.step
        seconds = self._latest.seconds - self._base.seconds
        if steps > 0 and seconds > 0:
            fields[STEPS_PER_SECOND] = steps / seconds
            samples = self._latest.samples - self._base.samples
            if samples > 0 and self._latest.unknown == self._base.unknown:
                fields[SAMPLES_PER_SECOND] = samples / seconds
            if self._is_timed:
                fields |= _milliseconds(self._base.activity, self._latest.activity, steps)
        return fields


def _milliseconds(before: _Activity, after: _Activity, steps: int) -> dict[str, float]:
    """Return {"all_reduce_ms": milliseconds per step during which any all-reduce ran, ...}.

    `before` and `after` are the activities at the beginning and at the end of `steps` steps. A kind
    of operation of which none was completed in these steps is left out.
    """
    return {
        f"{kind}_ms": (seconds - before[kind][1]) * 1e3 / steps
        for kind, (operations, seconds) in after.items()
        if operations > before[kind][0]
    }
