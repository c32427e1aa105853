# SPDX-License-Identifier: Apache-2.0
"""Faults of requests for local jobs, found before anything starts."""

from pathlib import Path

import pytest
from sagemaker.tuner import ContinuousParameter, HyperparameterTuner

from sagemaker_dist import DataParallel, OptionError, OptionErrors

pytestmark = pytest.mark.timeout(60)


def faults_of(call):
    with pytest.raises(OptionError) as caught:
        call()
    return [str(fault) for fault in getattr(caught.value, "faults", (caught.value,))]


@pytest.mark.parametrize(
    ("changes", "inputs", "fault"),
    [
        (
            {"instance_count": None},
            None,
            (
                "instance_count is left out: a job needs the number of its hosts. Pass"
                " instance_count=1."
            ),
        ),
        (
            {},
            {"../up": "file:///tmp"},
            "a channel is named '../up': a name consists of 1 to 64 letters, digits, '.', '-'"
            " and '_'. Rename the channel.",
        ),
        (
            {"model_uri": "gs://bucket/model"},
            None,
            "channel 'model' is 'gs://bucket/model': the scheme gs:// is not supported. Pass a"
            " file:// URI of a directory, or an s3:// URI.",
        ),
        (
            {"entry_point": "run.sh"},
            None,
            "entry_point is 'run.sh': ranks run only Python scripts. Pass the path of a .py file.",
        ),
        (
            {"source_dir": "s3://bucket/source.tar.gz"},
            None,
            "source_dir is 's3://bucket/source.tar.gz': local_process runs only code on this"
            " machine. Download and unpack the tarball, and pass its directory.",
        ),
    ],
)
def test_faults_of_fit(estimator, script, changes, inputs, fault):
    script(name="run.sh")
    built = estimator(**changes)

    assert [fault] == faults_of(lambda: built.fit(inputs))


@pytest.mark.parametrize("form", ["../beside.py", "{folder}/train.py"])
def test_the_script_lies_below_source_dir(estimator, script, form):
    folder = Path(script())
    (folder.parent / "beside.py").touch()
    given = form.format(folder=folder)
    built = estimator(entry_point=given)

    with pytest.raises(OptionError) as caught:
        built.fit()

    assert ("entry_point",) == caught.value.about
    assert f"it is not in source_dir {script()!r}" in caught.value.why


@pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning")
def test_a_tuner_is_refused(estimator):
    tuner = HyperparameterTuner(
        estimator(),
        "loss",
        {"lr": ContinuousParameter(0.1, 1)},
        metric_definitions=[{"Name": "loss", "Regex": "loss=(.*)"}],
    )

    assert [
        "the estimator of a tuner has a local instance type: tuning jobs run on SageMaker"
        " only. Call fit() for each set of hyperparameters, or pass an instance type of"
        " SageMaker."
    ] == faults_of(tuner.fit)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"output_path": "s3://bucket/x"},
            "output_path is 's3://bucket/x': local_process does not upload to S3."
            " Pass Path(...).absolute().as_uri(), or leave it out.",
        ),
        (
            {"checkpoint_s3_uri": "checkpoints"},
            "checkpoint_s3_uri is 'checkpoints': it is a path, and a file:// URI is needed."
            " Pass Path(...).absolute().as_uri(), or leave it out.",
        ),
        (
            {"checkpoint_local_path": "/tmp/x"},
            "checkpoint_local_path is '/tmp/x': local_process supports only directories below"
            " /opt/ml. Leave it out: the script finds the directory in SM_CHECKPOINT_DIR.",
        ),
        (
            {"checkpoint_local_path": "/opt/ml/input/data", "checkpoint_s3_uri": "file:///tmp"},
            "checkpoint_local_path is '/opt/ml/input/data': /opt/ml/input is used for other"
            " files. Leave it out: the script finds the directory in SM_CHECKPOINT_DIR.",
        ),
        (
            {"distribution": {"mpi": {"enabled": True}}},
            "distribution requests 'mpi': the image of sagemaker_dist has no MPI, because it"
            " starts ranks with torchrun. Pass {'torch_distributed': {'enabled': True}} for one"
            " rank per GPU, or run the job on SageMaker in its image (pass framework_version"
            " and py_version), or leave it out.",
        ),
        (
            {"distribution": {"torch_distributed": {"enabled": True}, "instance_groups": ["a"]}},
            (
                "distribution has instance_groups: a job with"
                " instance_type='local_process' has no instance groups. Leave"
                " instance_groups out."
            ),
        ),
        (
            {"instance_count": "2"},
            "instance_count is '2': it is not an integer. Pass an integer of at least 1.",
        ),
        (
            {"distribution": DataParallel(shard_weights=(1, 2, 1))},
            "shard_weights is of length 3: the number of hosts is 2, and each has one weight. Pass"
            " one weight per host, in numeric order of hosts, or leave shard_weights out.",
        ),
        (
            {"distribution": None, "py_version": "py310"},
            "py_version is 'py310': framework_version is left out, so the job uses the"
            " sagemaker-dist image, whose Python is fixed. Leave py_version out, or pass"
            " framework_version too for SageMaker's image.",
        ),
        (
            {"instance_type": ["local_process"]},
            "instance_type is ['local_process']: it is not a str. Pass a str such as"
            " 'ml.p4d.24xlarge'.",
        ),
        (
            {"use_spot_instances": True},
            "use_spot_instances is set: local_process does not support it. Leave"
            " use_spot_instances out.",
        ),
        (
            {"sagemaker_session": object()},
            "sagemaker_session is not a LocalSession of sagemaker_dist: a job with"
            " instance_type='local_process' runs on this machine and does not call SageMaker. Leave"
            " sagemaker_session out.",
        ),
        (
            {"subnets": ["subnet-1"]},
            "subnets is set: it has no effect on local_process. Leave subnets out.",
        ),
        (
            {"output_path": Path(__file__).as_uri()},
            f"output_path is {Path(__file__).as_uri()!r}: {__file__} is not a directory."
            " Pass a directory that can be written to, or leave it out.",
        ),
        (
            {"checkpoint_s3_uri": (Path(__file__) / "below").as_uri()},
            f"checkpoint_s3_uri is {(Path(__file__) / 'below').as_uri()!r}: {__file__} is not a"
            " directory. Pass a directory that can be written to, or leave it out.",
        ),
        (
            {"base_job_name": "my_job"},
            "base_job_name is 'my_job': a name consists of letters, digits and hyphens, and"
            " does not begin with a hyphen. Correct the name, or leave base_job_name out.",
        ),
        (
            {"environment": {"A=B": "1"}},
            "environment has the name 'A=B': a name must be a non-empty str without '=' and"
            " NUL. Correct the name.",
        ),
        (
            {"environment": {"A": 1}},
            "environment['A'] is 1: a value must be a str without NUL. Pass a str.",
        ),
        (
            {"environment": ["A"]},
            "environment is of type list: it must be a dict of names and values. Pass a dict"
            " such as {'NAME': 'value'}.",
        ),
        (
            {"instance_type": "local_proces"},
            "instance_type is 'local_proces': SageMaker training has no such instance type."
            " Did you mean 'local_process'?",
        ),
    ],
)
def test_faults_of_the_constructor(estimator, changes, fault):
    assert fault in faults_of(lambda: estimator(**changes))


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
        f"source_dir is '{tmp_path}/nowhere': this directory does not exist. Correct the path.",
        "channel 'a' is 'file:///nowhere': /nowhere does not exist. Create the directory, or"
        " correct the path.",
        "channel 'b' is 'data': a path without a scheme may be of this machine or of S3. Pass"
        " Path(...).absolute().as_uri().",
        "channel 'c' is 's3:///c': the URI has no bucket. Pass s3:// followed by a bucket and a"
        " prefix.",
        "channel 'd' is 'file://data': a file:// URI needs an absolute path. Pass"
        " Path(...).absolute().as_uri().",
    ] == faults_of(lambda: built.fit(inputs))
    assert not (tmp_path / "home").exists()


def test_a_job_name_is_used_once(estimator):
    built = estimator(instance_count=1)
    built.fit(logs=False, job_name="job")

    assert [
        "job_name is 'job': a job with this name exists already. Pass another name, or leave"
        " job_name out."
    ] == faults_of(lambda: built.fit(job_name="job"))
