# SPDX-License-Identifier: Apache-2.0
"""Public names of sagemaker-dist, which runs a training script on many ranks on SageMaker.

All public names can be imported from this package. The import does not load torch, SageMaker's SDK
or boto3. They are loaded when a class that needs them is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sagemaker_dist.contract import DataParallel, ModelParallel
from sagemaker_dist.contract.aws_distributions import (
    MPI,
    SMDDP,
    MultiWorkerMirroredStrategy,
    OnInstanceGroup,
    ParameterServer,
    PyTorchDDP,
    PyTorchXLA,
    TorchDistributed,
)
from sagemaker_dist.contract.metrics import metric_definitions
from sagemaker_dist.contract.smp import SMPv1, SMPv2
from sagemaker_dist.errors import (
    DistError,
    JobError,
    OptionError,
    OptionErrors,
    SetupError,
    SkewError,
)

if TYPE_CHECKING:
    from sagemaker_dist.estimators.generic import Estimator
    from sagemaker_dist.estimators.huggingface import HuggingFace
    from sagemaker_dist.estimators.local_session import LocalSession, ProcessSession
    from sagemaker_dist.estimators.pytorch import PyTorch
    from sagemaker_dist.estimators.tensorflow import TensorFlow
    from sagemaker_dist.jobs import TrainingJob
    from sagemaker_dist.planning.request import FileSystemInput, InstanceGroup, S3Input

__all__ = [
    "MPI",
    "SMDDP",
    "DataParallel",
    "DistError",
    "Estimator",
    "FileSystemInput",
    "HuggingFace",
    "InstanceGroup",
    "JobError",
    "LocalSession",
    "ModelParallel",
    "MultiWorkerMirroredStrategy",
    "OnInstanceGroup",
    "OptionError",
    "OptionErrors",
    "ParameterServer",
    "ProcessSession",
    "PyTorch",
    "PyTorchDDP",
    "PyTorchXLA",
    "S3Input",
    "SMPv1",
    "SMPv2",
    "SetupError",
    "SkewError",
    "TensorFlow",
    "TorchDistributed",
    "TrainingJob",
    "metric_definitions",
]

_LAZY = {
    "Estimator": "sagemaker_dist.estimators.generic",
    "HuggingFace": "sagemaker_dist.estimators.huggingface",
    "LocalSession": "sagemaker_dist.estimators.local_session",
    "ProcessSession": "sagemaker_dist.estimators.local_session",
    "PyTorch": "sagemaker_dist.estimators.pytorch",
    "TensorFlow": "sagemaker_dist.estimators.tensorflow",
    "TrainingJob": "sagemaker_dist.jobs",
    "FileSystemInput": "sagemaker_dist.planning.request",
    "InstanceGroup": "sagemaker_dist.planning.request",
    "S3Input": "sagemaker_dist.planning.request",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("sagemaker-dist")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted([*(name for name in __all__ if _is_here(name)), "__version__"])


def _is_here(name: str) -> bool:
    """Return whether the public name `name` can be imported on this machine.

    Estimators can be imported only if version 2 of SageMaker's Python SDK is installed; all other
    names can always be imported.
    """
    if ".estimators." not in _LAZY.get(name, ""):
        return True
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("sagemaker")).startswith("2.")
    except metadata.PackageNotFoundError:
        return False
