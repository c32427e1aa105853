# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters with which SageMaker's SDK requests ranks; the sagemaker-dist launcher reads them
too.

Names: SageMaker Python SDK 2.257.7, estimator.py, read 2026-11-21.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

FLAGS: Final = {  # by the key of `distribution=`
    "torch_distributed": "sagemaker_torch_distributed_enabled",
    "pytorchddp": "sagemaker_pytorch_ddp_enabled",
    "smdistributed.dataparallel": "sagemaker_distributed_dataparallel_enabled",
}
STRATEGY_FLAGS: Final = {  # of TensorFlow's own strategies
    "parameter_server": "sagemaker_parameter_server_enabled",
    "multi_worker_mirrored_strategy": "sagemaker_multi_worker_mirrored_strategy_enabled",
}
SERVED_FLAGS: Final = {**FLAGS, **STRATEGY_FLAGS}
OTHER_FLAGS: Final = (  # of launchers that the sagemaker-dist image lacks
    "sagemaker_mpi_enabled",
    "sagemaker_pytorch_xla_multi_worker_enabled",
    "mp_parameters",
)
GROUPS_KEY: Final = "sagemaker_distribution_instance_groups"
INSTANCE_KEY: Final = "sagemaker_instance_type"
_ON: Final = ("true", "1")
_OFF: Final = ("false", "0", "none", "null", "")


def is_flag_on(value: object) -> bool | None:
    """Return the value of a switch in JSON's or Python's spelling; None if it is neither on nor
    off.
    """
    text = str(value).strip().strip('"').lower()
    return text in _ON if text in (*_ON, *_OFF) else None


def flagged_framework(hyperparameters: Mapping[str, Any]) -> str | None:
    """Return the framework of the flag that is on; None for SMDDP's, which both frameworks have."""
    on = [key for key, flag in SERVED_FLAGS.items() if is_flag_on(hyperparameters.get(flag))]
    if any(key in STRATEGY_FLAGS for key in on):
        return "tensorflow"
    return "torch" if any(not key.startswith("smdistributed") for key in on) else None


def requests_ranks(hyperparameters: Mapping[str, Any]) -> bool:
    """Return whether one of the flags is on."""
    return any(is_flag_on(hyperparameters.get(flag)) for flag in SERVED_FLAGS.values())
