# SPDX-License-Identifier: Apache-2.0
"""`--set KEY=VALUE`: changes of a job file by the command line."""

import pytest
from job_files import abouts_of, faults_of

from sagemaker_dist.jobs.job_file import read_job_file
from sagemaker_dist.planning.request import S3Input


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("instance_count=4", "instance_count", 4),
        ("hyperparameters.lr=0.5", "hyperparameters", {"lr": 0.5, "epochs": 3}),
        ("hyperparameters.name=adam", "hyperparameters", {"lr": 0.1, "epochs": 3, "name": "adam"}),
        ("hyperparameters={ a = 1 }", "hyperparameters", {"a": 1}),
        ("job_name=5", "job_name", "5"),
        ("job_name='x'", "job_name", "x"),
        ("environment.LEVEL=1", "environment", {"LEVEL": "1"}),
        ("instance_type=ml.p4d.24xlarge", "instance_type", "ml.p4d.24xlarge"),
        ("use_spot_instances=true", "use_spot_instances", True),
        (
            "distribution.smdist.dataparallel.lanes=2",
            "distribution",
            {"smdist": {"dataparallel": {"lanes": 2}}},
        ),
        ("inputs.train=s3://data/b=c", "inputs", {"train": "s3://data/b=c"}),
        ("inputs.train.uri=s3://data", "inputs", {"train": S3Input(uri="s3://data")}),
        ('tags."a=b"=1', "tags", {"a=b": "1"}),
        ("hyperparameters . 'x.y' = 2", "hyperparameters", {"lr": 0.1, "epochs": 3, "x.y": 2}),
        ("tags.build=42", "tags", {"build": "42"}),
        ("tags.build='42'", "tags", {"build": "42"}),
        ("tags=[{ Key = 'a', Value = 'b' }]", "tags", [{"Key": "a", "Value": "b"}]),
    ],
)
def test_settings_of_the_command_line(job_file, setting, name, value):
    """Values are read as TOML; strings need no quotes."""
    path = job_file("""
        entry_point = "train.py"
        role = "training"
        instance_type = "ml.c5.xlarge"
        max_wait = 86400
        max_retry_attempts = 1
        [hyperparameters]
        lr = 0.1
        epochs = 3
        """)

    assert value == getattr(read_job_file(path, [setting]).job(), name)


def test_faults_of_settings(job_file):
    """Faults name --set, not the file."""
    path = job_file("""
        entry_point = "train.py"
        role = "training"
        instance_type = "ml.c5.xlarge"
        instance_count = 1
        """)

    assert ["--set: volum_size: no such key exists. Did you mean 'volume_size'?"] == faults_of(
        path, "volum_size=1"
    )
    assert [("inputs", "DataSource")] == abouts_of(path, "inputs.DataSource.uri=s3://a")
    assert [("instance_count",)] == abouts_of(path, "instance_count=0")
    assert faults_of(path, "instance_count=0")[0].startswith("--set: ")
    for text in ("instance_count", "#=1", "[x]#=1", "=1", "a b=1", "a.=1", "", '"a=1', "\n=1"):
        assert faults_of(path, text)[0].startswith(f"--set {text!r}: it is not KEY=VALUE")


@pytest.mark.parametrize(
    "setting",
    ["hyperparameters" + ".a" * 60_000 + "=1", "hyperparameters.a=" + "[" * 99 + "]" * 99],
    ids=["key", "value"],
)
def test_too_deep_a_setting(job_file, setting):
    """A --set value nested too deep is an error."""
    assert "nested more than 100 levels deep" in faults_of(job_file(""), setting)[0]


def test_text_of_many_brackets(job_file):
    """A value that TOML cannot read is text, however long it is."""
    path = job_file('entry_point = "train.py"\ninstance_type = "local_process"')
    job = read_job_file(path, [f"hyperparameters.a={'[' * 3000}"]).job()

    assert {"a": "[" * 3000} == job.hyperparameters
