# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit in Horovod's names, and StopCallback."""

from typing import Any

from smdist.dataparallel.tensorflow.absent import no_such_name
from smdist.dataparallel.tensorflow.keras.averaging import (
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    ModelCheckpoint,
)
from smdist.dataparallel.tensorflow.keras.learning_rate import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)
from smdist.dataparallel.tensorflow.keras.stopping import StopCallback

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
