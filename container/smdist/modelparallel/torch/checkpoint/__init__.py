# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that load under any layout.

A model that was split over four ranks goes on split over two, or whole in one process: values have
the names that they have in the model, whoever holds them.
"""

from smdist.modelparallel.torch.checkpoint.calls import (
    resume_from_checkpoint,
    save_checkpoint,
)
from smdist.modelparallel.torch.checkpoint.errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.exporting import export
from smdist.modelparallel.torch.checkpoint.gather import gather_state_dict
from smdist.modelparallel.torch.checkpoint.single import load, save

__all__ = [
    "CheckpointError",
    "export",
    "gather_state_dict",
    "load",
    "resume_from_checkpoint",
    "save",
    "save_checkpoint",
]
