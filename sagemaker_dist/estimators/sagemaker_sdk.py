# SPDX-License-Identifier: Apache-2.0
"""Check that SageMaker's SDK v2 is installed, and context managers that suppress its side effects.

The side effects are log messages, searches for AWS credentials, and a hook for tracebacks.
"""

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
_EC2_SIGNS: Final = {
    Path("/sys/devices/virtual/dmi/id/sys_vendor"): "amazon ec2",  # Nitro
    Path("/sys/hypervisor/uuid"): "ec2",  # Xen
}
_VERBOSE_LOGGERS: Final = ("sagemaker.config", "sagemaker.telemetry.telemetry_logging", "sagemaker")

_SHELL_HOOKS: Final = ("showtraceback", "_showtraceback", "showsyntaxerror")
_LOCK: Final = threading.RLock()  # guards the environment and the two counters below
_INSIDE: Final[Counter[str]] = Counter()
_BEFORE: Final[dict[str, str | None]] = {}  # variable -> the user's value


def check_sdk() -> None:
    """Check that version 2 of SageMaker's SDK is installed.

    Raises:
        SetupError: The SDK is not installed, or has another version.
    """
    found = _installed()
    if found is None:
        raise SetupError(
            "SageMaker's Python SDK is not installed",
            "the Estimators of sagemaker_dist need its version 2",
            _INSTALL,
            kind="missing",
        )
    if not found.startswith("2."):
        raise SetupError(
            f"SageMaker's Python SDK is version {found}",
            "version 3 has no Estimators, and the Estimators of sagemaker_dist extend those of"
            " version 2",
            _BY_TRAINER,
            kind="unsupported",
        )


def _installed() -> str | None:
    """Return the version of SageMaker's SDK, or None if it is not installed.

    Version 3 may be installed as the package sagemaker-train alone, without the package sagemaker.
    The result is then a text such as "3, its sagemaker-train 1.0".
    """
    for name, prefix in (("sagemaker", ""), ("sagemaker-train", "3, its sagemaker-train ")):
        with suppress(PackageNotFoundError):
            return prefix + version(name)
    return None


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress, in the `with` block, the SDK's log messages below WARNING and its advice.

    The advice is to use version 3 of the SDK. It still appears when the user's own code creates an
    object of one of the SDK's classes.
    """
    loggers = [logging.getLogger(name) for name in _VERBOSE_LOGGERS]

    def suppress_messages() -> None:
        for logger in loggers:
            logger.addFilter(_is_warning)

    def allow_messages() -> None:
        for logger in loggers:
            logger.removeFilter(_is_warning)

    with (
        _shared("loggers", suppress_messages, allow_messages),
        _environment(_SILENCE, "1"),
    ):
        yield


@contextmanager
def offline() -> Iterator[None]:
    """Turn off boto3's search for credentials in EC2's metadata service, in the `with` block.

    The SDK creates boto3 clients when it is imported and when it builds an estimator. Without other
    credentials, these clients call 169.254.169.254. Outside Amazon EC2 there is no answer, and each
    call waits for its timeout. On EC2 the search stays on.
    """
    if _may_be_ec2():
        yield
    else:
        with _environment(_NO_METADATA, "true"):
            yield


@contextmanager
def user_environment() -> Iterator[None]:
    """Undo the changes of `quiet` and `offline` to environment variables, in the `with` block.

    A process that is started in the block gets the user's own variables.
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
    """Restore Python's and IPython's traceback hooks at the end of the `with` block.

    The import of the SDK replaces these hooks by hooks of the library rich.
    """
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
    """Call `begin` when the first thread enters a `with` block with this name.

    Call `end` when the last thread leaves such a block.
    """
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
    """Return False if this machine is certainly not an Amazon EC2 instance.

    True means that it may be one. On Linux, files below /sys show whether it is one (source: Amazon
    EC2 user guide, 2026-11-21). On other systems, the result is always True.
    """
    if sys.platform != "linux":
        return True
    return any(
        path.is_file() and path.read_text(errors="replace").lower().startswith(sign)
        for path, sign in _EC2_SIGNS.items()
    )


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING
