# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that can be loaded under any layout: any number of ranks and stages.

A checkpoint stores each value under its name in the model, which is the same under all layouts. A
model that was split over four ranks can continue on two ranks, or in one process.
"""

from smdist.modelparallel.torch.checkpoint.checkpoint_calls import (
    resume_from_checkpoint,
    save_checkpoint,
)
from smdist.modelparallel.torch.checkpoint.checkpoint_errors import (
    CheckpointError,
    NoCheckpointError,
    SkippedCheckpoint,
    SkippedCheckpointWarning,
)
from smdist.modelparallel.torch.checkpoint.export_model import export
from smdist.modelparallel.torch.checkpoint.gather_values import gather_state_dict
from smdist.modelparallel.torch.checkpoint.single_file import load, save

__all__ = [
    "CheckpointError",
    "NoCheckpointError",
    "SkippedCheckpoint",
    "SkippedCheckpointWarning",
    "export",
    "gather_state_dict",
    "load",
    "resume_from_checkpoint",
    "save",
    "save_checkpoint",
]
