# SPDX-License-Identifier: Apache-2.0
"""Whose progress is printed, and what a script adds to it.

    from smdist.dataparallel.torch import report
    report(loss=loss)

One training at a time has the lines: the one that began last, on rank 0.
"""

from __future__ import annotations

import atexit
import os
from functools import cache

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler

from smdist.config import read_rank_config
from smdist.dataparallel.reported import check_name, check_number, refusal
from smdist.dataparallel.torch.progress import Progress, Value

_current: list[Progress] = []  # the one whose lines are printed, on rank 0


@_disable_dynamo
def report(**values: Value) -> None:
    """Put values such as `loss=loss` on the next line that this training prints.

    Cheap: call it at every step, on every rank. Only rank 0 keeps the values, the latest
    of each name, and reads tensors when it prints. What the script reports wins over what
    is counted. With smdist's DistributedDataParallel steps are counted; elsewhere (torch's
    own, FSDP) `step=`, a number that grows, makes rates and times per step known.

    Args:
        values: By name, a number or a tensor with one element.

    Raises:
        OptionError: A value is no such thing, or too large for one, or its name cannot be
            on the line.
    """
    for name, value in values.items():
        _check(name, value)
    if not _is_first_rank():
        return
    if not _current:
        _current.append(Progress(counts=False))
    _current[0].report(values)


def is_current(progress: Progress) -> bool:
    """Whether its lines are the ones to be printed: those of the training that began last."""
    return bool(_current) and _current[0] is progress


def enter(progress: Progress) -> None:
    """A training begins its first step; who was before it prints its last line."""
    finish()
    if _is_first_rank():
        _current.append(progress)


def finish() -> None:
    """The training has ended, or its group does: print what no line has said yet."""
    while _current:
        _current.pop().flush()
    _is_in_world.cache_clear()


def register() -> None:
    """See to a last line at the end of the process, and to none of its forked children."""
    atexit.register(_finish_process, os.getpid())
    os.register_at_fork(after_in_child=_forget)


def _finish_process(registered: int) -> None:
    if os.getpid() == registered:
        finish()


def _forget() -> None:
    _current.clear()
    _is_in_world.cache_clear()


def _is_first_rank() -> bool:
    """Without a group: whether this process is no rank of several."""
    if dist.is_initialized():
        return dist.get_rank() == 0
    return not _is_in_world()


@cache
def _is_in_world() -> bool:
    """What the environment says, read once for a training: report() is called at each step."""
    return read_rank_config().is_in_world


def _check(name: str, value: object) -> None:
    if check_name(name, value):
        return
    if not isinstance(value, torch.Tensor):
        check_number(name, value)
        return
    # Of a distributed tensor, rank 0 alone could not ask for the number.
    if value.numel() != 1 or value.is_complex() or hasattr(value, "placements"):
        shown = f"a {type(value).__name__} of shape {tuple(value.shape)} and {value.dtype}"
        mend = "Pass its mean(), or of a DTensor the full_tensor()"
        raise refusal(name, shown, "the line has one real number for it", mend)
    if value.is_meta:
        why = "what is there has no values"
        raise refusal(name, "a tensor on the device 'meta'", why, "Report where it has one")
