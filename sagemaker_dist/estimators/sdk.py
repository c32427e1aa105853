# SPDX-License-Identifier: Apache-2.0
"""Whether SageMaker's SDK is there, and keeping its asides out of our output."""

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
_BY_TRAINER: Final = f"""The same job by its ModelTrainer, which takes our ranks, too:

    from sagemaker.core.training.configs import Compute, InputData, SourceCode
    from sagemaker_dist.trainer import DataParallelConfig, ModelTrainer

    trainer = ModelTrainer(
        training_image="...",  # what `sagemaker-dist image push` printed
        source_code=SourceCode(source_dir="source", entry_script="train.py"),
        compute=Compute(instance_type="ml.p4d.24xlarge", instance_count=2),
        distributed=DataParallelConfig(),
        hyperparameters={{"epochs": 15}},
    )
    trainer.train([InputData(channel_name="training", data_source="s3://bucket/prefix")])

The Estimators want an environment of their own: {_INSTALL}"""
_SILENCE: Final = "SAGEMAKER_SUPPRESS_V2_WARNING"  # the SDK's own switch
_NO_METADATA: Final = "AWS_EC2_METADATA_DISABLED"  # botocore's own switch
_EC2_MARKS: Final = {
    Path("/sys/devices/virtual/dmi/id/sys_vendor"): "amazon ec2",  # Nitro
    Path("/sys/hypervisor/uuid"): "ec2",  # Xen
}
_CHATTY: Final = ("sagemaker.config", "sagemaker.telemetry.telemetry_logging", "sagemaker")

_SHELL_HOOKS: Final = ("showtraceback", "_showtraceback", "showsyntaxerror")
_LOCK: Final = threading.RLock()  # guards the environment and the two below
_INSIDE: Final[Counter[str]] = Counter()
_BEFORE: Final[dict[str, str | None]] = {}  # what the user's environment said


def check_sdk() -> None:
    """Raise SetupError unless SageMaker's SDK v2 is installed."""
    found = _installed()
    if found is None:
        raise SetupError(
            "SageMaker's Python SDK is not installed",
            "the Estimators of sagemaker_dist build on its version 2",
            _INSTALL,
        )
    if not found.startswith("2."):
        raise SetupError(
            f"SageMaker's Python SDK is version {found}",
            "version 3 removed the Estimators, which those of sagemaker_dist build on",
            _BY_TRAINER,
        )


def _installed() -> str | None:
    """Its version; the part of version 3 that trains can be there by itself."""
    for name, prefix in (("sagemaker", ""), ("sagemaker-train", "3, its sagemaker-train ")):
        with suppress(PackageNotFoundError):
            return prefix + version(name)
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back the SDK's notes that are not about what the user asked for.

    The advice to move to version 3 comes again, as the SDK means it, when the
    user's own code builds one of the SDK's classes.
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
    """No search for credentials in a metadata service that cannot be there.

    Importing the SDK and building an estimator make clients, which ask
    169.254.169.254 for credentials where they find none nearer. Outside Amazon
    EC2 nobody answers, and they wait.
    """
    if _may_be_ec2():
        yield
    else:
        with _environment(_NO_METADATA, "true"):
            yield


@contextmanager
def as_given() -> Iterator[None]:
    """Inside, the environment is the user's: what starts now inherits no switch of ours."""
    with _LOCK:
        ours = {name: os.environ.get(name) for name in _BEFORE}
        for name, value in _BEFORE.items():
            _put(name, value)
        try:
            yield
        finally:
            for name, value in ours.items():
                _put(name, value)


@contextmanager
def own_tracebacks() -> Iterator[None]:
    """Put back the hooks for tracebacks, which importing the SDK replaces by rich's."""
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
    """Begin with the first of the threads inside, end with the last."""
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
    """Whether the hardware says so, or says nothing (Amazon EC2 user guide, 2026-11-21)."""
    if sys.platform != "linux":
        return True
    return any(
        path.is_file() and path.read_text(errors="replace").lower().startswith(mark)
        for path, mark in _EC2_MARKS.items()
    )


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
