# SPDX-License-Identifier: Apache-2.0
"""Progress line of a training with torch, which can show values of reported tensors."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from numbers import Integral
from typing import Any, Final

import torch
import torch.distributed as dist

from smdist.dataparallel import progress_line
from smdist.dataparallel.progress_line import EVERY_SECONDS
from smdist.dataparallel.torch import _C

__all__ = ["EVERY_SECONDS", "TrainingProgress", "Value", "is_timed"]

_BACKEND: Final = "smdist"  # name of the backend itself, whatever name it was registered under

Value = float | torch.Tensor  # a number of another library, such as NumPy, is accepted too


def is_timed(device: torch.device, group: dist.ProcessGroup | None = None) -> bool:
    """Return True if collectives on tensors of a device can be timed.

    The engine times those that it runs itself. NCCL runs those on GPUs if the group's backend is
    "cpu:smdist,cuda:nccl".

    Args:
        device: The device of the tensors; always True for the CPU.
        group: The group that communicates; by default all ranks.
    """
    if device.type == "cpu":
        return True
    of_all: Any = group or dist.group.WORLD
    with suppress(RuntimeError):  # the group has no backend for the device
        return of_all is not None and of_all._get_backend(device).name() == _BACKEND
    return False


class TrainingProgress(progress_line.ProgressLine):
    """Progress lines of one training with torch.

    Reported tensors are read only when a line is printed. The base class `ProgressLine` describes
    the arguments.

    Attributes:
        is_current: True while rank 0 prints the progress lines of this training.
    """

    is_current = False

    def __init__(
        self,
        *,
        counts: bool,
        is_timed: bool = True,
        every_seconds: float = EVERY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            _C.activity, counts=counts, is_timed=is_timed, every_seconds=every_seconds, clock=clock
        )

    def is_timed_with(self, value: Value) -> bool:
        """Return False for a tensor on a device on which the engine runs no collectives."""
        return not isinstance(value, torch.Tensor) or is_timed(value.device)

    def kept(self, value: Any) -> Any:
        """Return a reported value for storage: a tensor detached from its graph, else a number."""
        return value.detach() if isinstance(value, torch.Tensor) else super().kept(value)

    def number(self, value: Any) -> int | float | None:
        """Return the number to print for a stored value; None if a tensor cannot be read."""
        if not isinstance(value, torch.Tensor):
            return super().number(value)
        # an error of the device or of the script's own tensor class, which the next step raises
        with suppress(Exception):
            plain: Any = value.item()
            return int(plain) if isinstance(plain, Integral) else float(plain)
        return None
