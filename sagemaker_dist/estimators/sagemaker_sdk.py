# SPDX-License-Identifier: Apache-2.0
"""Check for SageMaker's SDK v2, and contexts that silence its notes and lookups."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from sagemaker_dist.errors import SetupError

_INSTALL: Final = "In a clone of sagemaker-dist, run: pip install '.[v2]'"
_BY_TRAINER: Final = f"""The same job with its ModelTrainer, which can start smdist ranks too:

    from sagemaker.core.training.configs import Compute, InputData, SourceCode
    from sagemaker_dist.trainer import DataParallelConfig, ModelTrainer

    trainer = ModelTrainer(
        training_image="...",  # printed by `sagemaker-dist image push`
        source_code=SourceCode(source_dir="source", entry_script="train.py"),
        compute=Compute(instance_type="ml.p4d.24xlarge", instance_count=2),
        distributed=DataParallelConfig(),
        hyperparameters={{"epochs": 15}},
    )
    trainer.train([InputData(channel_name="training", data_source="s3://bucket/prefix")])

The Estimators need an environment of their own: {_INSTALL}"""
_SILENCE: Final = "SAGEMAKER_SUPPRESS_V2_WARNING"  # the SDK's own switch
_NO_METADATA: Final = "AWS_EC2_METADATA_DISABLED"  # botocore's own switch
_EC2_MARKS: Final = {
    Path("/sys/devices/virtual/dmi/id/sys_vendor"): "amazon ec2",  # Nitro
    Path("/sys/hypervisor/uuid"): "ec2",  # Xen
}
_CHATTY: Final = ("sagemaker.config", "sagemaker.telemetry.telemetry_logging", "sagemaker")

_SHELL_HOOKS: Final = ("showtraceback", "_showtraceback", "showsyntaxerror")
_LOCK: Final = threading.RLock()  # guards the environment and the two counters below
_INSIDE: Final[Counter[str]] = Counter()
_BEFORE: Final[dict[str, str | None]] = {}  # the user's values


def check_sdk() -> None:
    """Raise SetupError unless SageMaker's SDK v2 is installed."""
    found = _installed()
    if found is None:
        raise SetupError(
            "SageMaker's Python SDK is not installed",
            "the Estimators of sagemaker_dist need its version 2",
            _INSTALL,
        )
    if not found.startswith("2."):
        raise SetupError(
            f"SageMaker's Python SDK is version {found}",
            "version 3 has no Estimators, and those of sagemaker_dist need them",
            _BY_TRAINER,
        )


def _installed() -> str | None:
    """Return the SDK's version, or None; the training part of version 3 may be installed alone."""
    for name, prefix in (("sagemaker", ""), ("sagemaker-train", "3, its sagemaker-train ")):
        with suppress(PackageNotFoundError):
            return prefix + version(name)
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back the SDK's notes that are not about the user's request.

    The SDK's advice to move to version 3 still appears when the user's own code builds one of the
    SDK's classes.
    """
    loggers = [logging.getLogger(name) for name in _CHATTY]

    def hush() -> None:
        for logger in loggers:
            logger.addFilter(_is_warning)

    def unhush() -> None:
        for logger in loggers:
            logger.removeFilter(_is_warning)

    with _shared("loggers", hush, unhush), _environment(_SILENCE, "1"):
        yield


@contextmanager
def offline() -> Iterator[None]:
    """Prevent searches for credentials in a metadata service that does not exist here.

    Importing the SDK and building an estimator create clients, which call 169.254.169.254 if they
    find no credentials elsewhere. Outside Amazon EC2 nothing answers there, and the calls wait for
    a timeout.
    """
    if _may_be_ec2():
        yield
    else:
        with _environment(_NO_METADATA, "true"):
            yield


@contextmanager
def user_environment() -> Iterator[None]:
    """Restore the user's environment inside, so that a started process inherits no switch of
    `quiet` or `offline`.
    """
    with _LOCK:
        own = {name: os.environ.get(name) for name in _BEFORE}
        for name, value in _BEFORE.items():
            _put(name, value)
        try:
            yield
        finally:
            for name, value in own.items():
                _put(name, value)


@contextmanager
def own_tracebacks() -> Iterator[None]:
    """Restore the traceback hooks that importing the SDK replaces by rich's."""
    hook, shell = sys.excepthook, _ipython()
    before = {name: vars(shell).get(name) for name in _SHELL_HOOKS} if shell else {}
    try:
        yield
    finally:
        sys.excepthook = hook
        for name, value in before.items():
            if value is not None:
                setattr(shell, name, value)
            elif name in vars(shell):
                delattr(shell, name)


def _ipython() -> Any:
    module = sys.modules.get("IPython")
    return module.get_ipython() if module else None


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    def begin() -> None:
        _BEFORE[name] = os.environ.get(name)
        os.environ[name] = value

    with _shared(name, begin, lambda: _put(name, _BEFORE.pop(name))):
        yield


@contextmanager
def _shared(name: str, begin: Callable[[], None], end: Callable[[], None]) -> Iterator[None]:
    """Call `begin` for the first thread inside, and `end` after the last."""
    with _LOCK:
        _INSIDE[name] += 1
        if _INSIDE[name] == 1:
            begin()
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE[name] -= 1
            if not _INSIDE[name]:
                end()


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _may_be_ec2() -> bool:
    """Return whether the hardware is EC2's or unknown (Amazon EC2 user guide, 2026-11-21)."""
    if sys.platform != "linux":
        return True
    return any(
        path.is_file() and path.read_text(errors="replace").lower().startswith(mark)
        for path, mark in _EC2_MARKS.items()
    )


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
