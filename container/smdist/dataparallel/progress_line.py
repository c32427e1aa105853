# SPDX-License-Identifier: Apache-2.0
"""Progress line of a training, printed every ten seconds for people and for SageMaker.

    smdist: step=200 loss=0.6931 samples_per_second=1234.5 steps_per_second=4.8 all_reduce_ms=12.3

Only rank 0 prints. It prints when one of its training steps begins, so it needs no thread, and it
exchanges no messages with other ranks. It reads a reported tensor only when it prints the line.
The line contains only the numbers that are known. `sagemaker_dist.contract.metrics` defines the
format of the line; docs/metrics.md explains each number.
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
    COST,
    SAMPLES_PER_SECOND,
    STEP,
    STEPS_PER_SECOND,
    TIMED,
    render_line,
)
from smdist.config import read_usd_per_hour

EVERY_SECONDS: Final = 10.0
_HOUR: Final = 3600
# kind of operation -> (number of completed operations, seconds during which any was running)
_Activity = dict[str, tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """Counters of a training at the start of a step.

    A rate, such as steps per second, is the difference of a counter between two snapshots, divided
    by the seconds between them.
    """

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
        activity: Function that takes a kind of operation, such as "all_reduce". It returns the
            number of ended operations, and the seconds during which at least one was running.
        counts: True if calls of this object's forward() start the steps; False if calls of its
            report() start them.
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
        self._usd_per_hour, self._created = read_usd_per_hour(), clock()
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
        """Store values of the script, such as the loss, for the next progress line.

        If this object was created with `counts=False`, this call also starts a step, and prints a
        line if one is due.

        Args:
            values: Reported values, by name. The value of "step" is the number of the step.
        """
        self._reported.update({name: self.kept(value) for name, value in values.items()})
        if not self._counts:
            self._is_timed = self._is_timed and all(map(self.is_timed_with, values.values()))
            known = self._latest.step if self._latest else 0
            self._begin_step(int(values.get(STEP, known)))

    def flush(self) -> None:
        """Print a line now if a step has begun or a value was reported since the previous line.

        If stdout cannot be written, the line is lost and no error is raised.
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

    def is_timed_with(self, value: Any) -> bool:  # noqa: ARG002  a framework's own numbers may not
        """Return True if the engine runs collectives on the device of a reported value.

        This base class always does. After a value for which a subclass returns False, the progress
        lines show no times of collectives.
        """
        return True

    def kept(self, value: Any) -> Any:
        """Convert a reported value to the form that is stored for the next progress line.

        This base class returns an int or a float. A subclass may return a tensor.
        """
        return int(value) if isinstance(value, Integral) else float(value)

    def number(self, value: int | float) -> int | float | None:
        """Return the number to print for a value that kept() has returned.

        A subclass returns None for a tensor whose value cannot be read.
        """
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
        if self._usd_per_hour:
            fields[COST] = (self._clock() - self._created) * self._usd_per_hour / _HOUR
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
    """Return {"all_reduce_ms": milliseconds per step during which an all-reduce was running, ...}.

    A kind of operation is missing in the result if no such operation has ended in these steps.

    Args:
        before: At the beginning of the steps: (number of operations that have ended, seconds during
            which at least one was running) for each kind of operation.
        after: The same counters at the end of the steps.
        steps: Number of steps.
    """
    return {
        f"{kind}_ms": (seconds - before[kind][1]) * 1e3 / steps
        for kind, (operations, seconds) in after.items()
        if operations > before[kind][0]
    }
