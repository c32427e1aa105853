# SPDX-License-Identifier: Apache-2.0
"""Counter of training steps, for the progress lines that rank 0 prints."""

from __future__ import annotations

import torch

from smdist.dataparallel.torch import step_report
from smdist.dataparallel.torch.training_progress import TrainingProgress, is_timed
from smdist.modelparallel.torch.accelerator import current_device


class StepProgress:
    """Counter of training steps, for the progress lines that rank 0 prints.

    The times in these lines do not include messages between stages and NCCL transfers.
    """

    def __init__(self) -> None:
        device = current_device() or torch.device("cpu")
        self._progress = TrainingProgress(counts=True, is_timed=is_timed(device))
        self._has_begun = False

    def begin(self, samples: int) -> None:
        """Count a step that begins now.

        Args:
            samples: Number of samples of the step on all replicas; 0 if unknown.
        """
        if not self._has_begun:
            self._has_begun = True
            step_report.enter(self._progress)
        if self._progress.is_current:
            self._progress.forward(samples or None, is_step=True)
