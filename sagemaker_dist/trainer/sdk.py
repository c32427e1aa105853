# SPDX-License-Identifier: Apache-2.0
"""The ModelTrainer that is installed: of SageMaker's SDK v3, or of v2, which has it, too."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Final

from sagemaker_dist.errors import SetupError

_PLACES: Final = (  # v3 first; (the trainer, its distributed=)
    ("sagemaker.train.model_trainer", "sagemaker.train.distributed"),
    ("sagemaker.modules.train.model_trainer", "sagemaker.modules.distributed"),
)


def find_sdk() -> tuple[ModuleType, ModuleType]:
    """The module of the installed ModelTrainer, and that of its `distributed=`.

    Raises:
        SetupError: There is none.
    """
    for trainer, distributed in _PLACES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the SDK's own, about itself
                return import_module(trainer), import_module(distributed)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{trainer}.".startswith(f"{error.name}."):
                raise  # it is there and lacks something else
    raise SetupError(
        f"SageMaker's Python SDK is {_found()}",
        "sagemaker_dist.trainer builds on its ModelTrainer",
        "In a clone of sagemaker-dist, run: pip install '.[v3]'",
    )


def _found() -> str:
    try:
        return f"version {version('sagemaker')} and has none"
    except PackageNotFoundError:
        return "not installed"
