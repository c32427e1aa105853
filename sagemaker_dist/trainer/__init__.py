# SPDX-License-Identifier: Apache-2.0
"""SageMaker's ModelTrainer, of its SDK v3 or v2, with ranks of ours.

    ModelTrainer(..., distributed=DataParallelConfig())     SageMaker's own, or ours
    ModelTrainer(..., distributed=ModelParallelConfig())    the same
    check(trainer, inputs)                                  what would go wrong, at once

Importing this loads neither; what is named loads on first touch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sagemaker_dist.trainer.checked import ModelTrainer, check
    from sagemaker_dist.trainer.config import DataParallelConfig, ModelParallelConfig

__all__ = ["DataParallelConfig", "ModelParallelConfig", "ModelTrainer", "check"]

_HEAVY = {
    "DataParallelConfig": "sagemaker_dist.trainer.config",
    "ModelParallelConfig": "sagemaker_dist.trainer.config",
    "ModelTrainer": "sagemaker_dist.trainer.checked",
    "check": "sagemaker_dist.trainer.checked",
}


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HEAVY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
