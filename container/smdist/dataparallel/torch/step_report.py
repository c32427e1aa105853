# SPDX-License-Identifier: Apache-2.0
"""Choice of the training whose progress is printed, and the values that a script reports.

    from smdist.dataparallel.torch import report

    report(loss=loss)

Only one training at a time prints progress lines: the latest one to begin, on rank 0.
"""

from __future__ import annotations

import atexit
import os
from functools import cache

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler

from smdist.config import read_rank_config
from smdist.dataparallel.report_checks import check_name, check_number, refusal
from smdist.dataparallel.torch.training_progress import TrainingProgress, Value

_current: list[TrainingProgress] = []  # the training that prints, on rank 0; at most one


@_disable_dynamo
def report(**values: Value) -> None:
    """Put values such as `loss=loss` on the next progress line of this training.

    The call is cheap: make it at every step, on every rank. Only rank 0 keeps the values, the
    latest of each name, and reads tensors when it prints. A reported value replaces a
    counted one of the same name. smdist's DistributedDataParallel counts steps. With torch's
    own, or FSDP, pass `step=`, a growing number, to get rates and times per step.

    Args:
        values: A number or a tensor with one element for each name.

    Raises:
        OptionError: A value is neither, or too large for a float, or its name is not allowed
            on the line.
    """
    for name, value in values.items():
        _check(name, value)
    if not _is_first_rank():
        return
    if not _current:
        _become_current(TrainingProgress(counts=False))
    _current[0].report(values)


def enter(progress: TrainingProgress) -> None:
    """Make this training the one that prints; the training before it prints its last line."""
    finish()
    if _is_first_rank():
        _become_current(progress)


def finish() -> None:
    """Print the last line when the training or its process group has ended."""
    while _current:
        progress = _current.pop()
        progress.is_current = False
        progress.flush()
    _is_in_world.cache_clear()


def register() -> None:
    """Register the last line for the end of this process, but not of its forked children."""
    atexit.register(_finish_process, os.getpid())
    os.register_at_fork(after_in_child=_forget)


def _finish_process(registered: int) -> None:
    if os.getpid() == registered:
        finish()


def _become_current(progress: TrainingProgress) -> None:
    progress.is_current = True
    _current.append(progress)


def _forget() -> None:
    while _current:
        _current.pop().is_current = False
    _is_in_world.cache_clear()


def _is_first_rank() -> bool:
    """Return whether this process is rank 0, or a single process if there is no process group."""
    if dist.is_initialized():
        return dist.get_rank() == 0
    return not _is_in_world()


@cache
def _is_in_world() -> bool:
    """Return whether the environment names a rank; cached, because report() is called each step."""
    return read_rank_config().is_in_world


def _check(name: str, value: object) -> None:
    if check_name(name, value):
        return
    if not isinstance(value, torch.Tensor):
        check_number(name, value)
        return
    # Rank 0 alone cannot read a DTensor, because that is a collective.
    if value.numel() != 1 or value.is_complex() or hasattr(value, "placements"):
        shown = f"a {type(value).__name__} of shape {tuple(value.shape)} and {value.dtype}"
        hint = "Pass its mean(), or of a DTensor the full_tensor()"
        raise refusal(name, shown, "the line has one real number for it", hint)
    if value.is_meta:
        why = "what is there has no values"
        raise refusal(name, "a tensor on the device 'meta'", why, "Report where it has one")
