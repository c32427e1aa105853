# SPDX-License-Identifier: Apache-2.0
"""Timing of the passes of one trial: lower quartiles of several runs, after a warm-up.

Lower quartiles are used rather than medians, since a disturbance makes a run slower, never faster.
The warm-up run is not timed, because the first write to new memory is slow. For the gradient of an
embedding on a virtual machine, this write took ten times as long as the backward pass.

On an accelerator, such as a GPU, two events of its stream measure the time of a pass: that of the
device itself, without the time until the host notices its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from smdist.modelparallel.torch.accelerator import is_accelerator
from smdist.modelparallel.torch.measure.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of the passes of one call, for one microbatch.

    Attributes:
        forward: Seconds of the forward pass.
        backward: Seconds of the whole backward pass.
        input_gradient: Seconds of the part of the backward pass that computes the gradients of the
            inputs; the rest computes the gradients of weights.
    """

    forward: float = 0.0
    backward: float = 0.0
    input_gradient: float = 0.0


def timed(trial: Trial, *, device: torch.device, repeats: int, seconds: float) -> Times:
    """Measure the times of a module or function, which must have run once before.

    Args:
        trial: Module or function with its inputs.
        device: Device on which the passes run.
        repeats: Largest number of runs; one run is always made.
        seconds: Time after which no further run begins.
    """
    runs: list[Times] = []
    end = time.perf_counter() + seconds
    while not runs or (len(runs) < repeats and time.perf_counter() < end):
        runs.append(_once(trial, device))
    backward = _lower_quartile(run.backward for run in runs)
    return Times(
        forward=_lower_quartile(run.forward for run in runs),
        backward=backward,
        input_gradient=min(_lower_quartile(run.input_gradient for run in runs), backward),
    )


def _lower_quartile(seconds: Iterable[float]) -> float:
    found = sorted(seconds)
    return found[len(found) // 4]


def _once(trial: Trial, device: torch.device) -> Times:
    whole = trial.prepared()
    forward = _seconds(whole.forward, device)
    if not whole.seed():
        return Times(forward=forward)
    backward = _seconds(whole.backward, device)
    if not whole.leaves:
        return Times(forward=forward, backward=backward)
    if not trial.is_trained:
        return Times(forward=forward, backward=backward, input_gradient=backward)
    part = trial.prepared()
    part.forward()
    part.seed()
    to_inputs = _seconds(part.backward_to_inputs, device)
    return Times(forward=forward, backward=backward, input_gradient=to_inputs)


def _seconds(action: Callable[[], None], device: torch.device) -> float:
    if is_accelerator(device):
        return _device_seconds(action, device)
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def _device_seconds(action: Callable[[], None], device: torch.device) -> float:
    """Return the time that a device needs for the work of an action on its current stream."""
    begin, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    torch.accelerator.synchronize(device)
    begin.record()
    action()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000.0
