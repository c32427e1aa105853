# SPDX-License-Identifier: Apache-2.0
"""The same run by ModelTrainer and by TrainingJob; docs/ways_to_submit.md says what differs."""

import json

import pytest

from sagemaker_dist import DataParallel, TrainingJob, metric_definitions
from sagemaker_dist.contract import KEY, parse
from sagemaker_dist.trainer import DataParallelConfig, ModelTrainer

OPTIONS = {"lanes": 2, "processes_per_host": 4}
HYPERPARAMETERS = {"lr": 0.1, "name": "näme", "flag": True, "list": [1, "a"]}


@pytest.fixture
def asked(arguments, request_of, tmp_path):
    """What ModelTrainer asks for, and what TrainingJob does."""
    common = {"hyperparameters": HYPERPARAMETERS, "environment": {"A": "b"}}
    ours = DataParallelConfig(**OPTIONS)
    kind = {"kind": "local_cpu", "hosts": 2}
    theirs = plain(request_of(ModelTrainer(**arguments(distributed=ours, **kind, **common))))
    job = TrainingJob(
        entry_point="train.py",
        source_dir=tmp_path / "source",
        instance_type="local",
        instance_count=2,
        image_uri="sagemaker-dist:0.1.0-torch",
        distribution=DataParallel(**OPTIONS),
        job_name=theirs["training_job_name"],
        **common,
    )
    return theirs, job.request()


def plain(value):
    """As JSON has it, without what SageMaker's SDK left unassigned."""
    if hasattr(value, "model_fields_set"):
        value = {name: getattr(value, name, None) for name in type(value).model_fields}
    if isinstance(value, dict):
        parts = {name: plain(part) for name, part in value.items()}
        return {name: part for name, part in parts.items() if part is not None}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return None if type(value).__name__ == "Unassigned" else value


def test_image_hosts_metrics_and_environment_are_the_same(asked):
    theirs, ours = asked
    algorithm = theirs["algorithm_specification"]
    metrics = [
        {"Name": each["name"], "Regex": each["regex"]} for each in algorithm["metric_definitions"]
    ]

    assert ours["AlgorithmSpecification"]["TrainingImage"] == algorithm["training_image"]
    assert metric_definitions() == metrics == ours["AlgorithmSpecification"]["MetricDefinitions"]
    assert ours["ResourceConfig"]["InstanceCount"] == theirs["resource_config"]["instance_count"]
    assert (
        ours["ResourceConfig"]["VolumeSizeInGB"] == (theirs["resource_config"]["volume_size_in_gb"])
    )
    assert ours["Environment"] == theirs["environment"]


def test_hyperparameters_of_the_script_are_the_same(asked):
    """SageMaker's classes write text without quotes; both are read alike."""
    theirs, ours = asked
    written = {name: json.loads(ours["HyperParameters"][name]) for name in HYPERPARAMETERS}

    assert HYPERPARAMETERS == written
    assert {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in HYPERPARAMETERS.items()
    } == theirs["hyper_parameters"]


def test_the_distribution_is_a_hyperparameter_or_a_file(asked):
    """TrainingJob's travels with the request, ModelTrainer's in its channel sm_drivers."""
    theirs, ours = asked
    channels = [each["channel_name"] for each in theirs["input_data_config"]]

    assert DataParallel(**OPTIONS) == parse(ours["HyperParameters"][KEY])
    assert KEY not in theirs["hyper_parameters"]
    assert ["code", "sm_drivers"] == sorted(channels)
    assert "/bin/bash" == theirs["algorithm_specification"]["container_entrypoint"][0]
