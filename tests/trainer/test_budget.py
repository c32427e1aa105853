# SPDX-License-Identifier: Apache-2.0
"""ModelTrainer with max_cost: the time limit of its jobs, and what is refused."""

from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec

import pytest
from error_fields import fields_of
from pydantic import ValidationError

from sagemaker_dist.trainer import ModelTrainer
from sagemaker_dist.trainer.trainer_budget import trainer_budget


def account(monkeypatch):
    """Return a context in which SageMaker's class finds an account: moto's, or for v3 a role."""
    if find_spec("sagemaker.train") is None:
        return import_module("moto").mock_aws()
    # moto has no SimulatePrincipalPolicy, by which v3 checks the role.
    defaults = import_module("sagemaker.train.defaults")
    monkeypatch.setattr(
        defaults, "resolve_and_validate_role", lambda provided_role, **_: provided_role
    )
    monkeypatch.setattr(defaults.Session, "default_bucket", lambda self: "bucket")
    return nullcontext()


def test_local_containers_have_no_limit(arguments):
    """SageMaker's local containers have no time limit, so max_cost is refused there."""
    with pytest.raises(ValidationError) as caught:
        ModelTrainer(**arguments(max_cost=10, price_per_hour=1.0))
    (wrong,) = caught.value.errors()

    assert [("max_cost", "unsupported")] == fields_of(wrong["ctx"]["error"])


def test_without_max_cost(sdk, arguments):
    """Without max_cost there is no budget; SageMaker's own class never has one."""
    assert trainer_budget(sdk.ModelTrainer(**arguments())) is None


def test_time_limit_of_a_job(sdk, arguments, monkeypatch, capsys):
    """During `train`, the time limit is what max_cost pays for; it is said, and undone after."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    given = arguments(
        kind="ml.c5.xlarge",
        training_mode=sdk.Mode.SAGEMAKER_TRAINING_JOB,
        role="arn:aws:iam::123456789012:role/training",
    )
    del given["local_container_root"]
    with pytest.raises(ValidationError) as caught:
        ModelTrainer(**given, max_cost=1)
    (wrong,) = caught.value.errors()
    assert [("max_cost", "unknown_price")] == fields_of(wrong["ctx"]["error"])
    with account(monkeypatch):
        trainer = ModelTrainer(**given, max_cost=1, price_per_hour=1.0)
    before = trainer.stopping_condition
    with trainer._within_budget():
        assert 1800 - 120 - 300 == trainer.stopping_condition.max_runtime_in_seconds
        assert "2" == trainer.environment["SMDIST_USD_PER_HOUR"]

    assert before == trainer.stopping_condition
    assert "MaxRuntimeInSeconds=1380" in capsys.readouterr().out
