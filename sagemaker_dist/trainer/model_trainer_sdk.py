# SPDX-License-Identifier: Apache-2.0
"""Import of SageMaker's ModelTrainer from the installed SDK, which is v3 or v2."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Final

from sagemaker_dist.errors import SetupError

_PLACES: Final = (  # v3 first; modules of the trainer, and of the classes for distributed=
    ("sagemaker.train.model_trainer", "sagemaker.train.distributed"),
    ("sagemaker.modules.train.model_trainer", "sagemaker.modules.distributed"),
)


def find_sdk() -> tuple[ModuleType, ModuleType]:
    """Return the modules of the installed ModelTrainer and of its `distributed=` classes.

    Raises:
        SetupError: No ModelTrainer is installed.
    """
    for trainer, distributed in _PLACES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings that the SDK causes by itself
                return import_module(trainer), import_module(distributed)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{trainer}.".startswith(f"{error.name}."):
                raise  # the SDK is installed, but one of its imports is missing
    raise SetupError(
        f"SageMaker's Python SDK is {_found()}",
        "sagemaker_dist.trainer needs its ModelTrainer",
        "In a clone of sagemaker-dist, run: pip install '.[v3]'",
        kind="missing",
    )


def _found() -> str:
    try:
        return f"version {version('sagemaker')} and has no ModelTrainer"
    except PackageNotFoundError:
        return "not installed"
