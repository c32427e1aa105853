# SPDX-License-Identifier: Apache-2.0
"""How training goes on, as rank 0 prints it: what DDP's steps are elsewhere."""

from __future__ import annotations

import torch

from smdist.dataparallel.torch import reporting
from smdist.dataparallel.torch.progress import Progress


class Steps:
    """Counts the steps of one model. Activations are not timed, nor is what NCCL moves."""

    def __init__(self) -> None:
        self._progress = Progress(counts=True, is_timed=not torch.cuda.is_available())
        self._has_begun = False

    def begin(self, samples: int) -> None:
        """A step begins.

        Args:
            samples: On all replicas; 0 where that is not known.
        """
        if not self._has_begun:
            self._has_begun = True
            reporting.enter(self._progress)
        if reporting.is_current(self._progress):
            self._progress.forward(samples or None, is_step=True)
