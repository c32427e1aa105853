# SPDX-License-Identifier: Apache-2.0
"""Metric definitions, with which SageMaker reads the lines that the smdist runtime prints."""

import pytest

from sagemaker_dist import (
    DataParallel,
    Estimator,
    HuggingFace,
    PyTorch,
    TorchDistributed,
    metric_definitions,
)

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning"),
]

OUR_IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:0.1.0-torch"
MINE = {"Name": "train:loss", "Regex": "my loss ([0-9.]+)"}


@pytest.fixture
def algorithm_of(session, script):
    """Return a function that returns the AlgorithmSpecification of a job, with the test's
    changes.
    """

    def fit(kind=PyTorch, **changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": script(),
            "role": "arn:aws:iam::123456789012:role/training",
            "instance_type": "ml.c5.xlarge",
            "instance_count": 2,
            "image_uri": OUR_IMAGE,
            "sagemaker_session": session,
            "distribution": DataParallel(),
        }
        kind(**{**arguments, **changes}).fit(wait=False)
        return session.requests[-1]["AlgorithmSpecification"]

    return fit


@pytest.mark.parametrize("kind", [PyTorch, HuggingFace, Estimator])
@pytest.mark.parametrize("option", [DataParallel(), TorchDistributed()])
def test_jobs_of_our_launcher_have_our_metrics(algorithm_of, kind, option):
    """Jobs of the sagemaker-dist launcher have the runtime's metrics and their time series."""
    algorithm = algorithm_of(kind, distribution=option)

    assert metric_definitions() == algorithm["MetricDefinitions"]
    assert algorithm["EnableSageMakerMetricsTimeSeries"] is True


def test_the_users_own_win(algorithm_of):
    algorithm = algorithm_of(metric_definitions=[MINE], enable_sagemaker_metrics=False)

    assert [MINE, *metric_definitions()[1:]] == algorithm["MetricDefinitions"]
    assert algorithm["EnableSageMakerMetricsTimeSeries"] is False


def test_who_wants_none_gets_none(algorithm_of):
    assert not algorithm_of(metric_definitions=[]).get("MetricDefinitions")


def test_there_are_never_more_than_sagemaker_takes(algorithm_of):
    """With 38 metrics of the user, two of the runtime's are added: SageMaker's limit is 40."""
    mine = [{"Name": f"m{each}", "Regex": "([0-9]+)"} for each in range(38)]

    assert (
        mine + metric_definitions()[:2]
        == algorithm_of(metric_definitions=mine)["MetricDefinitions"]
    )


def test_other_jobs_stay_as_they_are(algorithm_of):
    """Jobs without the sagemaker-dist launcher have none of its metrics."""
    assert "MetricDefinitions" not in algorithm_of(distribution=None)
    assert "MetricDefinitions" not in algorithm_of(
        distribution={"mpi": {"enabled": True}}, image_uri="m:1"
    )
