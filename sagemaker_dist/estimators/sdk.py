# SPDX-License-Identifier: Apache-2.0
"""Whether SageMaker's SDK is there, and keeping its asides out of our output."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from sagemaker_dist.errors import SetupError

_INSTALL: Final = "Run: pip install 'sagemaker-dist[v2]'"
_SILENCE: Final = "SAGEMAKER_SUPPRESS_V2_WARNING"  # the SDK's own switch
_NO_METADATA: Final = "AWS_EC2_METADATA_DISABLED"  # botocore's own switch
_EC2_MARKS: Final = {
    Path("/sys/devices/virtual/dmi/id/sys_vendor"): "amazon ec2",  # Nitro
    Path("/sys/hypervisor/uuid"): "ec2",  # Xen
}
_CHATTY: Final = ("sagemaker.config", "sagemaker.telemetry.telemetry_logging", "sagemaker")


def check_sdk() -> None:
    """Raise SetupError unless SageMaker's SDK v2 is installed."""
    try:
        found = version("sagemaker")
    except PackageNotFoundError:
        raise SetupError(
            "SageMaker's Python SDK is not installed",
            "sagemaker_dist.PyTorch is an Estimator of its version 2",
            _INSTALL,
        ) from None
    if int(found.partition(".")[0]) >= 3:
        raise SetupError(
            f"SageMaker's Python SDK is version {found}",
            "version 3 removed the Estimators, which sagemaker_dist.PyTorch builds on",
            f"{_INSTALL} in an environment of its own",
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back the SDK's notes that are not about what the user asked for.

    The advice to move to version 3 comes again, as the SDK means it, when the
    user's own code builds one of the SDK's classes.
    """
    loggers = [logging.getLogger(name) for name in _CHATTY]
    for logger in loggers:
        logger.addFilter(_is_warning)
    try:
        with _environment(_SILENCE, "1"):
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_warning)


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
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


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
