# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit: those of Horovod, and StopCallback."""

from typing import Any

from smdist.dataparallel.tensorflow.keras.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from smdist.dataparallel.tensorflow.keras.stop_callback import StopCallback
from smdist.dataparallel.tensorflow.keras.sync_callbacks import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    ModelCheckpoint,
)
from smdist.dataparallel.tensorflow.unsupported_horovod import no_such_name

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ModelCheckpoint",
    "StopCallback",
]


def __getattr__(name: str) -> Any:
    raise no_such_name(__name__, name)
