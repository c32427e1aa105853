# SPDX-License-Identifier: Apache-2.0
"""The line of progress of a training with torch: reported tensors are read when it is printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from numbers import Integral
from typing import Any

import torch

from smdist.dataparallel import progress
from smdist.dataparallel.progress import EVERY_SECONDS
from smdist.dataparallel.torch import _C

__all__ = ["EVERY_SECONDS", "Progress", "Value"]

Value = float | torch.Tensor  # or another library's number


class Progress(progress.Progress):
    """How one training with torch goes on; see smdist.dataparallel.progress."""

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

    def is_on_cpu(self, value: Value) -> bool:
        """Operations on other tensors are not the engine's."""
        return not isinstance(value, torch.Tensor) or value.device.type == "cpu"

    def kept(self, value: Any) -> Any:
        """A tensor without its graph."""
        return value.detach() if isinstance(value, torch.Tensor) else super().kept(value)

    def number(self, value: Any) -> int | float | None:
        """What is in a tensor; None if it cannot be read: its step is over."""
        if not isinstance(value, torch.Tensor):
            return super().number(value)
        with suppress(Exception):  # a device's fault, a class of the script: the next step meets it
            plain: Any = value.item()
            return int(plain) if isinstance(plain, Integral) else float(plain)
        return None
