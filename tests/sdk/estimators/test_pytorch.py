# SPDX-License-Identifier: Apache-2.0
"""The PyTorch estimator on SageMaker, played by moto."""

import json
import pickle
import re

import pytest
import sagemaker
import sagemaker.tuner
from error_fields import fields_of
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.workflow.parameters import ParameterInteger, ParameterString

from sagemaker_dist import (
    SMDDP,
    DataParallel,
    OptionError,
    OptionErrors,
    PyTorch,
    metric_definitions,
)
from sagemaker_dist.contract import KEY, MiB, parse

pytestmark = [
    pytest.mark.timeout(60),
    # the SDK's advice to move to version 3, where a test builds the SDK's own classes
    pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning"),
]

IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
OUR_IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:0.1.0-torch"
ROLE = "arn:aws:iam::123456789012:role/training"
GPU = pytest.mark.filterwarnings("ignore:ml.p4d.24xlarge has 8 GPUs:UserWarning")


@pytest.fixture
def estimator(session, script):
    """Return a function that builds a valid estimator, with the test's changes."""

    def build(**changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": script(),
            "role": ROLE,
            "instance_type": "ml.c5.xlarge",
            "instance_count": 2,
            "image_uri": IMAGE,
            "sagemaker_session": session,
            "distribution": DataParallel(),
        }
        return PyTorch(**{**arguments, **changes})

    return build


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, "/state"),
        ({"environment": {"SM_CHECKPOINT_DIR": "/mine"}}, "/mine"),
        ({"distribution": None}, None),
        ({"checkpoint_local_path": None}, None),
    ],
)
def test_ranks_are_told_where_checkpoints_lie(estimator, session, changes, folder):
    """checkpoint_local_path is passed to ranks as SM_CHECKPOINT_DIR, which SageMaker does not
    set.
    """
    places = {"checkpoint_s3_uri": "s3://bucket/state", "checkpoint_local_path": "/state"}
    estimator(**{**places, **changes}).fit(wait=False)
    (sent,) = session.requests

    assert folder == sent.get("Environment", {}).get("SM_CHECKPOINT_DIR")


@GPU
def test_request(estimator, session):
    """The request is the parent's, plus one hyperparameter and metrics, minus the debugger."""
    options = DataParallel(fusion_bytes=32 * MiB)
    built = estimator(
        instance_type="ml.p4d.24xlarge", distribution=options, hyperparameters={"lr": 0.1}
    )
    built.fit({"training": "s3://bucket/data"}, wait=False)
    (sent,) = session.requests
    name = sent["TrainingJobName"]
    wire = sent["HyperParameters"].pop(KEY)

    assert re.fullmatch(r"mine-[\d-]{23}", name)
    assert options == parse(wire)
    assert json.loads(wire).startswith('{"dataparallel":{')  # encoded as the parent encodes
    assert {
        "AlgorithmSpecification": {
            "EnableSageMakerMetricsTimeSeries": True,
            "MetricDefinitions": metric_definitions(),
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
        },
        "HyperParameters": {
            "lr": "0.1",
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": f'"{name}"',
            "sagemaker_program": '"train.py"',
            "sagemaker_region": '"us-west-2"',
            "sagemaker_submit_directory": f'"s3://bucket/{name}/source/sourcedir.tar.gz"',
        },
        "InputDataConfig": [
            {
                "ChannelName": "training",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataDistributionType": "FullyReplicated",
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://bucket/data",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/"},
        "ProfilerConfig": {"DisableProfiler": True},
        "ResourceConfig": {
            "InstanceCount": 2,
            "InstanceType": "ml.p4d.24xlarge",
            "VolumeSizeInGB": 30,
        },
        "RoleArn": ROLE,
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "TrainingJobName": name,
    } == sent


def test_hyperparameters_are_the_same_every_time(estimator):
    built = estimator()

    assert built.hyperparameters() == built.hyperparameters()


def test_attach_restores_the_distribution(estimator, session):
    """attach returns the typed distribution, and a second fit sends it again."""
    options = DataParallel(processes_per_host=4)
    # moto does not echo a KmsKeyId that was left out, the parent's attach needs one
    built = estimator(distribution=options, hyperparameters={"lr": 0.1}, output_kms_key="key")
    built.fit(wait=False)
    attached = PyTorch.attach(built.latest_training_job.name, sagemaker_session=session)

    assert built.distribution == attached.distribution
    assert KEY not in attached._hyperparameters
    assert built.hyperparameters() == attached.hyperparameters()
    assert built.model_data == attached.model_data


@pytest.mark.parametrize(
    "distribution",
    [
        DataParallel(),
        {"smdist": {"dataparallel": {}}},
        {"smdist": {"dataparallel": {"enabled": True}}},
        {"smdistributed": {"dataparallel": {"enabled": True}}},
        SMDDP(),
    ],
)
def test_every_spelling_asks_for_the_same(estimator, distribution):
    built = estimator(distribution=distribution, image_uri=OUR_IMAGE)

    assert DataParallel() == parse(built.hyperparameters()[KEY])
    assert not {name for name in built.hyperparameters() if "dataparallel_enabled" in name}


def test_other_distributions_are_the_parents(estimator):
    """With other distributions the request equals the parent's."""
    torch = {"torch_distributed": {"enabled": True}}
    built = estimator(distribution=torch)
    plain = sagemaker.pytorch.PyTorch(
        "train.py",
        source_dir=built.source_dir,
        role=ROLE,
        instance_type="ml.c5.xlarge",
        instance_count=2,
        image_uri=IMAGE,
        sagemaker_session=built.sagemaker_session,
        distribution=torch,
    )

    assert torch == built.distribution
    assert plain.hyperparameters() == built.hyperparameters()
    assert plain.disable_profiler == built.disable_profiler
    assert plain.debugger_hook_config == built.debugger_hook_config


def test_debugger_and_profiler_stay_where_the_user_sets_them(estimator):
    hook = sagemaker.debugger.DebuggerHookConfig(s3_output_path="s3://bucket/hook")
    built = estimator(debugger_hook_config=hook, disable_profiler=False)

    assert hook is built.debugger_hook_config
    assert built.disable_profiler is False


def test_gpu_hosts_warn_once_about_cuda_tensors(estimator):
    with pytest.warns(UserWarning, match="ml.p4d") as caught:
        estimator(instance_type="ml.p4d.24xlarge")
    (said,) = caught

    assert str(said.message).startswith(
        'ml.p4d.24xlarge has 8 GPUs (A100). Use init_process_group("smdist") in the script'
    )
    assert __file__ == said.filename  # the user's line is shown


@pytest.mark.filterwarnings("ignore:Running within a PipelineSession:UserWarning")  # it is meant
def test_pipeline_variables_pass_every_check(estimator, pipeline):
    """Pipeline variables pass every check and are sent unchanged."""
    built = estimator(
        instance_type=ParameterString("Type"),
        instance_count=ParameterInteger("Count"),
        image_uri=ParameterString("Image"),
        output_path=ParameterString("Output"),
        checkpoint_s3_uri=ParameterString("Checkpoints"),
        sagemaker_session=pipeline,
    )
    built.fit({"training": TrainingInput(ParameterString("Data"))})

    assert DataParallel() == parse(built.hyperparameters()[KEY])


def test_a_model_is_the_parents(estimator, session):
    """`create_model` uses the image that the user named."""
    built = estimator()
    built.fit(wait=False)
    model = built.create_model(entry_point="serve.py")

    assert IMAGE == model.image_uri
    assert built.model_data == model.model_data


def fields_raised(call):
    """Return the fields of the error of a call, which also survives pickling."""
    with pytest.raises(OptionError) as caught:
        call()
    error = caught.value
    assert str(error) == str(pickle.loads(pickle.dumps(error)))
    return fields_of(error)


@pytest.mark.parametrize(
    ("changes", "about", "kind"),
    [
        (
            {"image_uri": None, "framework_version": "2.8", "py_version": "py312"},
            "framework_version",
            "unsupported",
        ),
        ({"checkpoint_local_path": "/opt/ml/state"}, "checkpoint_local_path", "missing"),
        (
            {"instance_type": "ml.p4d.24large", "image_uri": None},
            "instance_type",
            "unknown",
        ),
        ({"instance_type": "local"}, "instance_type", "conflict"),
        ({"use_spot_instance": True}, "use_spot_instance", "unknown"),
        (
            {
                "distribution": {
                    "smdist": {"dataparallel": {}},
                    "torch_distributed": {"enabled": True},
                }
            },
            "distribution.torch_distributed",
            "conflict",
        ),
    ],
)
def test_faults_of_the_constructor(estimator, changes, about, kind):
    assert [(about, kind)] == fields_raised(lambda: estimator(**changes))


def test_two_faults_come_together_and_bring_the_entry_points(estimator, script):
    """A missing script is reported together with the other faults."""
    with pytest.raises(OptionErrors) as caught:
        estimator(
            distribution={"smdist": {"dataparallel": {"fusion_byte": 1}}},
            instance_type="ml.p4d.24large",
            entry_point="tran.py",
        )

    assert str(caught.value) == (
        "3 faults in this request:\n"
        "  1. distribution['smdist']['dataparallel'] has the key 'fusion_byte': no such key"
        " exists. Did you mean 'fusion_bytes'?\n"
        "  2. instance_type is 'ml.p4d.24large': SageMaker training has no such instance type."
        " Did you mean 'ml.p4d.24xlarge'?\n"
        "  3. entry_point is 'tran.py': this file does not exist in source_dir"
        f" {script()!r}. Correct the path."
    )


def test_faults_of_fit_come_before_anything_is_sent(estimator, session, tmp_path):
    built = estimator(entry_point="tran.py")
    built.instance_count = 0
    inputs = {
        "a": f"file://{tmp_path}",
        "b": "data/b",
        "c": "gs://bucket/c",
        "d": "s3://bucket/d",
        "e": FileSystemInput("fs-0123456789", "EFS", "/e"),
    }
    faults = fields_raised(lambda: built.fit(inputs, job_name="a_b"))

    assert [] == session.requests
    assert [
        ("entry_point", "missing_file"),
        ("instance_count", "option"),
        ("job_name", "option"),
        ("inputs.a.uri", "unsupported"),
        ("inputs.b.uri", "ambiguous"),
        ("inputs.c.uri", "unsupported"),
        ("inputs.e", "missing"),
    ] == faults
    assert faults == fields_raised(lambda: built.validate(inputs, job_name="a_b"))


def test_a_tuner_is_told_before_it_uploads(estimator):
    """A tuner gets the faults before it uploads, although it does not call fit() or validate()."""
    metrics = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    ranges = {"lr": sagemaker.tuner.ContinuousParameter(0.1, 1.0)}
    built = estimator(entry_point="tran.py")
    tuner = sagemaker.tuner.HyperparameterTuner(built, "loss", ranges, metrics)

    assert [("entry_point", "missing_file")] == fields_raised(
        lambda: tuner.fit("s3://bucket/data", wait=False)
    )


@pytest.mark.parametrize("count", [1, 3])
def test_weights_are_for_the_hosts_of_the_job(estimator, session, count):
    """The number of shard weights is checked against the hosts, before anything is sent."""
    weighted = {"smdist": {"dataparallel": {"shard_weights": [1, 2]}}}
    faults = fields_raised(lambda: estimator(distribution=weighted, instance_count=count))

    assert [] == session.requests
    assert [("shard_weights", "difference")] == faults
