# SPDX-License-Identifier: Apache-2.0
"""Names of horovod.tensorflow.keras.elastic and horovod.keras.elastic, over smdist.elastic."""

from __future__ import annotations

from smdist.elastic.horovod_callbacks import (
    CommitStateCallback,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
)
from smdist.elastic.horovod_run import run
from smdist.elastic.horovod_tensorflow import HorovodKerasState as KerasState

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
