# SPDX-License-Identifier: Apache-2.0
"""Progress line of a training with torch: reported tensors are read when the line is printed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from numbers import Integral
from typing import Any

import torch

from smdist.dataparallel import progress_line
from smdist.dataparallel.progress_line import EVERY_SECONDS
from smdist.dataparallel.torch import _C

__all__ = ["EVERY_SECONDS", "TrainingProgress", "Value"]

Value = float | torch.Tensor  # or a number of another library


class TrainingProgress(progress_line.ProgressLine):
    """Progress of one training with torch; see smdist.dataparallel.progress_line.

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

    def is_on_cpu(self, value: Value) -> bool:
        """Return False for a tensor on another device: the engine does not reduce it."""
        return not isinstance(value, torch.Tensor) or value.device.type == "cpu"

    def kept(self, value: Any) -> Any:
        """Return a tensor without its autograd graph, and any other value as a number."""
        return value.detach() if isinstance(value, torch.Tensor) else super().kept(value)

    def number(self, value: Any) -> int | float | None:
        """Return the number in a tensor, or None if it cannot be read because its step is over."""
        if not isinstance(value, torch.Tensor):
            return super().number(value)
        # a fault of the device or of the script's class: the next step raises it
        with suppress(Exception):
            plain: Any = value.item()
            return int(plain) if isinstance(plain, Integral) else float(plain)
        return None
