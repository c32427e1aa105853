# SPDX-License-Identifier: Apache-2.0
"""Use of the smdist runtime with SageMaker's ModelTrainer, of SDK v3 or v2.

    ModelTrainer(..., distributed=DataParallelConfig())     replicates the model on every rank
    ModelTrainer(..., distributed=ModelParallelConfig())    splits the model over ranks
    check(trainer, inputs)                                  reports all faults of the job

Both values of `distributed=` work with SageMaker's own ModelTrainer and with the class in this
package, which also runs the checks. Importing this package does not import SageMaker's SDK. The SDK
is imported at the first use of one of the names above.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sagemaker_dist.trainer.model_trainer import ModelTrainer, check
    from sagemaker_dist.trainer.trainer_config import DataParallelConfig, ModelParallelConfig

__all__ = ["DataParallelConfig", "ModelParallelConfig", "ModelTrainer", "check"]

_LAZY = {
    "DataParallelConfig": "sagemaker_dist.trainer.trainer_config",
    "ModelParallelConfig": "sagemaker_dist.trainer.trainer_config",
    "ModelTrainer": "sagemaker_dist.trainer.model_trainer",
    "check": "sagemaker_dist.trainer.model_trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
