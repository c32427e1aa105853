# SPDX-License-Identifier: Apache-2.0
"""SageMaker's ModelTrainer (SDK v3 or v2) with smdist ranks.

        ModelTrainer(..., distributed=DataParallelConfig())     for SageMaker's class, and this one
        ModelTrainer(..., distributed=ModelParallelConfig())    likewise
        check(trainer, inputs)                                  report all faults before the start

Importing this package loads neither SDK; its names load when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sagemaker_dist.trainer.model_trainer import ModelTrainer, check
    from sagemaker_dist.trainer.trainer_config import DataParallelConfig, ModelParallelConfig

__all__ = ["DataParallelConfig", "ModelParallelConfig", "ModelTrainer", "check"]

_HEAVY = {
    "DataParallelConfig": "sagemaker_dist.trainer.trainer_config",
    "ModelParallelConfig": "sagemaker_dist.trainer.trainer_config",
    "ModelTrainer": "sagemaker_dist.trainer.model_trainer",
    "check": "sagemaker_dist.trainer.model_trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HEAVY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
