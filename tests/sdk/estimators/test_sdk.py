# SPDX-License-Identifier: Apache-2.0
"""Whether SageMaker's SDK is there, and what a user reads where it is not."""

import logging
import os
from importlib.metadata import PackageNotFoundError

import pytest

from sagemaker_dist.errors import SetupError
from sagemaker_dist.estimators import sdk


def test_missing_sdk(monkeypatch):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(sdk, "version", version)
    with pytest.raises(SetupError) as caught:
        sdk.check_sdk()

    assert str(caught.value) == (
        "SageMaker's Python SDK is not installed: sagemaker_dist.PyTorch is an Estimator of its"
        " version 2. Run: pip install 'sagemaker-dist[v2]'."
    )


def test_sdk_without_estimators(monkeypatch):
    monkeypatch.setattr(sdk, "version", lambda _: "3.27.0")
    with pytest.raises(SetupError) as caught:
        sdk.check_sdk()

    assert str(caught.value) == (
        "SageMaker's Python SDK is version 3.27.0: version 3 removed the Estimators, which"
        " sagemaker_dist.PyTorch builds on. Run: pip install 'sagemaker-dist[v2]' in an environment"
        " of its own."
    )


def test_quiet_holds_back_asides_and_leaves_the_environment_as_it_was(caplog):
    before = dict(os.environ)
    logger = logging.getLogger("sagemaker.config")
    with caplog.at_level(logging.INFO, logger="sagemaker.config"), sdk.quiet():
        logger.info("an aside")
        logger.warning("a warning")

    assert ["a warning"] == [record.message for record in caplog.records]
    assert before == dict(os.environ)
