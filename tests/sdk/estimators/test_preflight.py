# SPDX-License-Identifier: Apache-2.0
"""Facts that the checks get about an estimator: arguments, the SDK's defaults, limits of the
API.
"""

from types import SimpleNamespace

import pytest
from error_fields import fields_of
from sagemaker.inputs import FileSystemInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.workflow.parameters import (
    ParameterBoolean,
    ParameterInteger,
    ParameterString,
)

from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.planning import Job, construction_faults, fit_faults

TEXT, NUMBER = ParameterString("Text"), ParameterInteger("Number")
OF_A_PIPELINE = {
    "instance_type": TEXT,
    "instance_count": NUMBER,
    "role": TEXT,
    "image_uri": TEXT,
    "input_mode": TEXT,
    "hyperparameters": {"lr": TEXT, "layers": [NUMBER, 2], "sizes": {"a": NUMBER}},
    "environment": {"NAME": TEXT},
    "use_spot_instances": ParameterBoolean("Spot"),
    "max_run": NUMBER,
    "max_wait": NUMBER,
    "max_retry_attempts": NUMBER,
    "volume_size": NUMBER,
    "volume_kms_key": TEXT,
    "output_kms_key": TEXT,
    "subnets": [TEXT],
    "security_group_ids": [TEXT],
    "tags": [{"Key": TEXT, "Value": TEXT}],
    "metric_definitions": [{"Name": TEXT, "Regex": TEXT}],
    "training_plan": TEXT,
    "container_arguments": [TEXT, "--fast"],
}


def found(given):
    job = Job(
        terms=estimator_facts.terms(given),
        environment=estimator_facts.environment(given.get("environment")),
    )
    return fields_of((*construction_faults(job), *fit_faults(job)))


def test_what_only_a_pipeline_will_know_passes_every_check():
    assert [] == found(OF_A_PIPELINE)


@pytest.mark.parametrize("name", sorted(OF_A_PIPELINE))
def test_each_argument_may_come_from_a_pipeline(name):
    """Any argument may be a pipeline variable while the others are plain values."""
    plain = {"instance_type": "ml.c5.xlarge", "instance_count": 1, "max_run": 60, "max_wait": 60}
    vpc = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"], "use_spot_instances": True}

    assert [] == found({**plain, **vpc, name: OF_A_PIPELINE[name]})


def test_groups_of_a_pipeline():
    groups = [InstanceGroup(TEXT, TEXT, NUMBER), InstanceGroup("a", "ml.c5.xlarge", NUMBER)]

    assert [] == found({"instance_groups": groups})


@pytest.mark.parametrize("instance_type", ["local_process", "local", "local_gpu"])
def test_a_job_of_this_machine_has_terms(instance_type):
    """The hyperparameters of a local job are checked, too."""
    terms = estimator_facts.terms({"instance_type": instance_type, "hyperparameters": {"lr": 0.1}})

    assert {"lr": 0.1} == terms.hyperparameters


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("efs://fs-01234567", ("EFS", "fs-01234567", "/")),
        ("efs://fs-01234567/", ("EFS", "fs-01234567", "/")),
        ("fsx://fs-01234567/mount/a b", ("FSxLustre", "fs-01234567", "/mount/a b")),
    ],
)
def test_short_names_of_file_systems(given, place):
    """URIs of file systems become read-only FileSystemInputs."""
    source = estimator_facts.expand_file_systems({"a": given})["a"].config["DataSource"][
        "FileSystemDataSource"
    ]
    kind, name, directory = place

    assert {
        "FileSystemType": kind,
        "FileSystemId": name,
        "DirectoryPath": directory,
        "FileSystemAccessMode": "ro",
    } == source


@pytest.mark.parametrize(
    "given", [None, "s3://bucket/efs://x", TEXT, [], FileSystemInput("fs-01234567", "EFS", "/")]
)
def test_other_inputs_stay_as_they_are(given):
    assert given is estimator_facts.expand_file_systems(given)
    assert estimator_facts.expand_file_systems({"a": given})["a"] is given


def test_a_built_estimator_is_asked_for_what_it_holds():
    """Hyperparameters and network isolation are read from the estimator object."""
    estimator = SimpleNamespace(
        instance_type="ml.c5.xlarge",
        instance_count=1,
        max_run=60,
        use_spot_instances=False,
        _hyperparameters={"lr": 0.1},
        hyperparameters=dict,
        enable_network_isolation=lambda: True,
    )
    terms = estimator_facts.estimator_terms(estimator)

    assert {"instance_type", "instance_count", "max_run", "hyperparameters"} == terms.passed - {
        "enable_network_isolation"
    }
    assert ({"lr": 0.1}, True, False) == (
        terms.hyperparameters,
        terms.enable_network_isolation,
        terms.runs_script,
    )


@pytest.mark.parametrize(
    ("given", "runs_script", "encodes_json"),
    [
        ({}, False, False),
        ({"entry_point": "train.py"}, True, False),
        ({"entry_point": "train.py", "source_dir": "src"}, True, True),
    ],
)
def test_a_generic_estimator_may_run_a_script(given, runs_script, encodes_json):
    """With a source_dir, the hyperparameters of a generic Estimator are JSON."""
    terms = estimator_facts.terms(given, is_framework=False)

    assert (runs_script, encodes_json) == (terms.runs_script, terms.encodes_json)


def test_a_generic_estimator_writes_hyperparameters_as_they_are():
    """Without a script, line breaks and any names are allowed."""
    given = {"hyperparameters": {"two words": "a\nb"}}
    terms = estimator_facts.terms(given, is_framework=False)

    assert [('hyperparameters."two words"', "line_break")] == fields_of(
        construction_faults(Job(terms=terms))
    )


@pytest.mark.parametrize("input_mode", ["File", "Pipe"])
def test_short_names_are_read_by_jobs_of_this_machine(tmp_path, input_mode):
    """A local job reads the directory that file_systems gives for a file system."""
    (tmp_path / "mount").mkdir()
    inputs = estimator_facts.expand_file_systems({"a": "fsx://fs-01234567/mount"})
    (channel,) = estimator_facts.channels(
        inputs, input_mode=input_mode, file_systems={"fs-01234567": str(tmp_path)}
    )
    job = Job(instance_type="local_process", instance_count=1, channels=(channel,))
    refused = [("inputs.a.input_mode", "unsupported")]

    assert str(tmp_path / "mount") == channel.directory
    assert ([] if input_mode == "File" else refused) == fields_of(fit_faults(job))
