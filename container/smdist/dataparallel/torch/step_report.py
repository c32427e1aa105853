# SPDX-License-Identifier: Apache-2.0
"""Function report(), which adds values to the progress line that rank 0 prints.

    from smdist.dataparallel.torch import report

    report(loss=loss)

If a process trains several models, only the model whose training began last has progress lines.
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
    """Add values such as `loss=loss` to the next progress line.

    Call it on every rank at every step: it is cheap. Rank 0 stores the latest value of each
    name and reads tensors only when it prints; the other ranks ignore the values. A reported
    value replaces a measured value of the same name.

    smdist's DistributedDataParallel counts steps itself. With torch's DistributedDataParallel or
    with FSDP, pass `step=`, an increasing number, so that the line shows rates and times per step.

    Args:
        values: A number, or a tensor with one element, for each name.

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
    """Let only `progress` print progress lines from now on.

    The training that printed them before prints its last progress line now.
    """
    finish()
    if _is_first_rank():
        _become_current(progress)


def finish() -> None:
    """Print the last progress line of the current training; print no further lines for it."""
    while _current:
        progress = _current.pop()
        progress.is_current = False
        progress.flush()
    _is_in_world.cache_clear()


def register() -> None:
    """Register an exit handler that prints the last progress line.

    Processes forked from this process do not print it.
    """
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
    """Return True if this process is rank 0, or if it is not a rank of a job."""
    if dist.is_initialized():
        return dist.get_rank() == 0
    return not _is_in_world()


@cache
def _is_in_world() -> bool:
    """Return True if the environment makes this process a rank of a job.

    The result is cached, because report() is called at every step.
    """
    return read_rank_config().is_in_world


def _check(name: str, value: object) -> None:
    if check_name(name, value):
        return
    if not isinstance(value, torch.Tensor):
        check_number(name, value)
        return
    # a DTensor is refused: reading it is a collective, and only rank 0 would call it
    if value.numel() != 1 or value.is_complex() or hasattr(value, "placements"):
        shown = f"a {type(value).__name__} of shape {tuple(value.shape)} and {value.dtype}"
        hint = "Pass a tensor with one element, such as its mean(); for a DTensor, full_tensor()"
        why = "the progress line shows one real number for it"
        raise refusal(name, shown, why, hint, "not_number")
    if value.is_meta:
        why = "tensors on this device have no values"
        hint = "Report a tensor on the CPU or on a GPU"
        raise refusal(name, "a tensor on the device 'meta'", why, hint, "no_values")
