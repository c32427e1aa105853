# SPDX-License-Identifier: Apache-2.0
"""Faults of requests for local jobs, found before anything starts."""

from pathlib import Path

import pytest
from error_fields import fields_raised
from sagemaker.tuner import ContinuousParameter, HyperparameterTuner

from sagemaker_dist import DataParallel, OptionErrors

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("changes", "inputs", "expected"),
    [
        ({"instance_count": None}, None, ("instance_count", "missing")),
        ({}, {"../up": "file:///tmp"}, ('inputs."../up"', "option")),
        ({"model_uri": "gs://bucket/model"}, None, ("inputs.model.uri", "unsupported")),
        ({"entry_point": "run.sh"}, None, ("entry_point", "unsupported")),
        ({"source_dir": "s3://bucket/source.tar.gz"}, None, ("source_dir", "unsupported")),
    ],
)
def test_faults_of_fit(estimator, script, changes, inputs, expected):
    script(name="run.sh")
    built = estimator(**changes)

    assert [expected] == fields_raised(lambda: built.fit(inputs))


@pytest.mark.parametrize("form", ["../beside.py", "{folder}/train.py"])
def test_the_script_lies_below_source_dir(estimator, script, form):
    folder = Path(script())
    (folder.parent / "beside.py").touch()
    given = form.format(folder=folder)
    built = estimator(entry_point=given)

    assert [("entry_point", "outside")] == fields_raised(built.fit)


@pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning")
def test_a_tuner_is_refused(estimator):
    tuner = HyperparameterTuner(
        estimator(),
        "loss",
        {"lr": ContinuousParameter(0.1, 1)},
        metric_definitions=[{"Name": "loss", "Regex": "loss=(.*)"}],
    )

    assert [("", "unsupported")] == fields_raised(tuner.fit)


FILE = Path(__file__)


@pytest.mark.parametrize(
    ("changes", "about", "kind"),
    [
        ({"output_path": "s3://bucket/x"}, "output_path", "unsupported"),
        ({"checkpoint_s3_uri": "checkpoints"}, "checkpoint_s3_uri", "relative"),
        ({"checkpoint_local_path": "/tmp/x"}, "checkpoint_local_path", "outside"),
        (
            {"checkpoint_local_path": "/opt/ml/input/data", "checkpoint_s3_uri": "file:///tmp"},
            "checkpoint_local_path",
            "reserved",
        ),
        (
            {"distribution": {"pytorchxla": {"enabled": True}}},
            "distribution.pytorchxla",
            "unsupported",
        ),
        (
            {"distribution": {"torch_distributed": {"enabled": True}, "instance_groups": ["a"]}},
            "distribution.instance_groups",
            "unsupported",
        ),
        ({"instance_count": "2"}, "instance_count", "option"),
        (
            {"distribution": DataParallel(shard_weights=(1, 2, 1))},
            "shard_weights",
            "difference",
        ),
        ({"distribution": None, "py_version": "py310"}, "py_version", "no_effect"),
        ({"instance_type": ["local_process"]}, "instance_type", "type"),
        ({"use_spot_instances": True}, "use_spot_instances", "unsupported"),
        ({"sagemaker_session": object()}, "sagemaker_session", "conflict"),
        ({"subnets": ["subnet-1"]}, "subnets", "no_effect"),
        ({"output_path": FILE.as_uri()}, "output_path", "not_a_directory"),
        (
            {"checkpoint_s3_uri": (FILE / "below").as_uri()},
            "checkpoint_s3_uri",
            "not_a_directory",
        ),
        ({"base_job_name": "my_job"}, "base_job_name", "option"),
        ({"environment": {"A=B": "1"}}, 'environment."A=B"', "option"),
        ({"environment": {"A": 1}}, "environment.A", "type"),
        ({"environment": ["A"]}, "environment", "type"),
        ({"environment": {"SMDIST_INTEGRTY": "mac"}}, "environment.SMDIST_INTEGRTY", "unknown"),
        ({"environment": {"SMDIST_ENCRYPT": "yes"}}, "environment.SMDIST_ENCRYPT", "type"),
        (
            {"distribution": DataParallel(lanes=2), "environment": {"SMDIST_LANES": "4"}},
            "environment.SMDIST_LANES",
            "conflict",
        ),
        ({"instance_type": "local_proces"}, "instance_type", "unknown"),
    ],
)
def test_faults_of_the_constructor(estimator, changes, about, kind):
    assert (about, kind) in fields_raised(lambda: estimator(**changes))


def test_two_faults_come_together(estimator):
    with pytest.raises(OptionErrors) as caught:
        estimator(output_path="s3://b/x", checkpoint_s3_uri="s3://b/c")

    assert str(caught.value) == (
        "2 faults in this request:\n"
        "  1. output_path is 's3://b/x': local_process does not upload to S3."
        " Pass Path(...).absolute().as_uri(), or leave it out.\n"
        "  2. checkpoint_s3_uri is 's3://b/c': local_process does not upload to S3."
        " Pass Path(...).absolute().as_uri(), or leave it out."
    )


def test_faults_of_fit_come_before_anything_starts(estimator, tmp_path):
    built = estimator(source_dir=str(tmp_path / "nowhere"))
    inputs = {"a": "file:///nowhere", "b": "data", "c": "s3:///c", "d": "file://data"}

    assert [
        ("source_dir", "missing_file"),
        ("inputs.a.uri", "missing_file"),
        ("inputs.b.uri", "ambiguous"),
        ("inputs.c.uri", "incomplete"),
        ("inputs.d.uri", "relative"),
    ] == fields_raised(lambda: built.fit(inputs))
    assert not (tmp_path / "home").exists()


def test_a_job_name_is_used_once(estimator):
    built = estimator(instance_count=1)
    built.fit(logs=False, job_name="job")

    assert [("job_name", "conflict")] == fields_raised(lambda: built.fit(job_name="job"))
