# SPDX-License-Identifier: Apache-2.0
"""Plans are pure: the same request gives the same job, which survives a trip through JSON."""

import json
from pathlib import Path

import pytest
from error_fields import fields_of, fields_raised

from sagemaker_dist.contract import KEY, DataParallel, render
from sagemaker_dist.planning import (
    Channel,
    Job,
    LocalHost,
    LocalJob,
    LocalSource,
    Obstacle,
    construction_faults,
    directory_of,
    fit_faults,
    plan_local_job,
)
from sagemaker_dist.planning.locations import corrected_s3_uri

REQUEST = {
    "TrainingJobName": "job",
    "AlgorithmSpecification": {"TrainingInputMode": "File"},
    "HyperParameters": {KEY: json.dumps(render(DataParallel(processes_per_host=4)))},
    "InputDataConfig": [
        {
            "ChannelName": "training",
            "ContentType": "text/csv",
            "DataSource": {"FileDataSource": {"FileUri": "file:///my%20data"}},
        }
    ],
    "ResourceConfig": {"InstanceType": "local_process", "InstanceCount": 300},
    "OutputDataConfig": {"S3OutputPath": "file:///out"},
    "CheckpointConfig": {"S3Uri": "file:///keep", "LocalPath": "/opt/ml/state/here"},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60},
}


def test_job():
    job = plan_local_job(REQUEST)

    assert LocalHost(label="algo-2", address="127.0.0.2") == job.hosts[1]
    assert LocalHost(label="algo-300", address="127.0.1.44") == job.hosts[-1]
    assert "300 hosts x 4 ranks" == job.layout
    assert ("/out", "/keep", "state/here") == (job.output, job.checkpoints, job.checkpoint_folder)
    assert "/my data" == job.channels[0].path
    assert "text/csv" == job.input_data_config()["training"]["ContentType"]


@pytest.mark.parametrize(
    "source",
    [
        None,
        LocalSource(folder=Path("/src")),
        LocalSource(folder=Path("/src"), only="train.py", dependencies=(Path("/lib"),)),
    ],
)
def test_job_survives_json(source):
    job = plan_local_job({**REQUEST, "LocalSource": source and source.request()})

    assert source == job.source
    assert job == LocalJob.load(json.loads(json.dumps(job.dump())))


def test_a_request_may_leave_its_source_to_the_hyperparameters():
    assert plan_local_job(REQUEST).source is None


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({}, "1 host x 1 rank"),
        ({"sagemaker_torch_distributed_enabled": "false"}, "1 host x 1 rank"),
        ({"sagemaker_torch_distributed_enabled": "true"}, "1 host"),
        ({KEY: render(DataParallel())}, "1 host"),
    ],
)
def test_ranks_are_one_without_a_distribution_and_open_without_a_number(options, layout):
    resources = {"InstanceType": "local_process", "InstanceCount": 1}
    request = {**REQUEST, "HyperParameters": options, "ResourceConfig": resources}

    assert layout == plan_local_job(request).layout


def test_weights_are_for_the_hosts_of_the_request():
    """The local runner refuses what the estimator did not see."""
    wire = render(DataParallel(shard_weights=(1, 2)))
    resources = {"InstanceType": "local_process", "InstanceCount": 2}
    request = {**REQUEST, "HyperParameters": {KEY: wire}}

    assert 2 == len(plan_local_job({**request, "ResourceConfig": resources}).hosts)
    assert [("shard_weights", "difference")] == fields_raised(lambda: plan_local_job(request))


@pytest.mark.parametrize(
    ("uri", "path"),
    [("file:///a%20b", "/a b"), ("file:///a b?#", "/a b?#"), ("/plain%20", "/plain%20")],
)
def test_directory_of_a_uri(uri, path):
    assert path == directory_of(uri)


@pytest.mark.parametrize(
    ("instance_type", "faults"), [("local", 0), ("local_process", 0), ("ml.c5.xlarge", 1)]
)
def test_a_file_is_refused_only_where_it_cannot_be_read(instance_type, faults):
    """SageMaker's own local mode reads file:// too."""
    job = Job(
        instance_type=instance_type,
        instance_count=1,
        channels=(Channel(name="training", uri="file:///data"),),
    )

    assert faults == len(list(fit_faults(job)))


@pytest.mark.parametrize(
    ("path", "faults"),
    [
        ("/opt/ml/checkpoints", 0),
        ("/opt/ml/inputs/x", 0),
        ("/opt/ml", 1),
        ("/opt/ml/", 1),
        ("/opt/mlx", 1),
        ("/opt/ml/../x", 1),
        ("/opt/ml/model", 1),
        ("/opt/ml/input/data", 1),
        ("/opt/ml/output", 1),
        ("/opt/ml/code", 1),
        ("checkpoints", 1),
    ],
)
def test_checkpoints_get_a_folder_of_their_own(path, faults):
    job = Job(instance_type="local_process", checkpoint_local_path=path)

    assert faults == len(list(construction_faults(job)))


def test_an_argument_of_fit_is_told_to_belong_there():
    job = Job(instance_type="local_process", unknown=("job_name",), valid=("base_job_name",))

    assert [("job_name", "misplaced")] == fields_of(construction_faults(job))


def test_a_place_that_may_not_be_written_to():
    """Told apart from a file in the way; root's own tests could not make one."""
    obstacles = {"output_path": Obstacle(path="/usr", is_directory=True)}
    job = Job(instance_type="local_process", output_path="file:///usr/x", obstacles=obstacles)

    assert [("output_path", "not_writable")] == fields_of(construction_faults(job))


@pytest.mark.parametrize(
    ("name", "faults"),
    [("a.b-c_1", 0), ("a" * 64, 0), ("a" * 65, 1), ("", 1), (".", 1), ("..", 1), ("a/b", 1)],
)
def test_names_of_channels(name, faults):
    """Wherever the job runs, the name of a channel is the name of a directory."""
    for instance_type in ("local_process", "local", "ml.c5.xlarge"):
        job = Job(instance_type=instance_type, instance_count=1, channels=(Channel(name=name),))

        assert faults == len(list(fit_faults(job)))


@pytest.mark.parametrize(
    ("uri", "meant"),
    [
        ("s3:/bucket/a", "s3://bucket/a"),
        ("s3//bucket/a", "s3://bucket/a"),
        ("s3:bucket", "s3://bucket"),
        ("S3://bucket", "s3://bucket"),
        ("s3://bucket", None),
        ("s3://", None),
        ("s3", None),
        ("s3-data/x", None),
        ("file:///s3:/x", None),
    ],
)
def test_misspelt_places_are_recognised(uri, meant):
    assert meant == corrected_s3_uri(uri)
