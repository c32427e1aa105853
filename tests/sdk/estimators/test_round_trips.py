# SPDX-License-Identifier: Apache-2.0
"""Options of the sagemaker-dist launcher are restored: by attach, from a tuner, from a pipeline.

moto plays SageMaker.
"""

import json
from itertools import count

import pytest
import sagemaker
from sagemaker.huggingface import HuggingFace as TheirHuggingFace
from sagemaker.inputs import FileSystemInput, TrainingInput
from sagemaker.instance_group import InstanceGroup
from sagemaker.pytorch import PyTorch as TheirPyTorch
from sagemaker.tensorflow import TensorFlow as TheirTensorFlow
from sagemaker.tuner import ContinuousParameter, HyperparameterTuner
from sagemaker.workflow.functions import Join
from sagemaker.workflow.parameters import ParameterFloat, ParameterInteger, ParameterString
from sagemaker.workflow.pipeline import Pipeline
from sagemaker.workflow.steps import TrainingStep

from sagemaker_dist import (
    MPI,
    SMDDP,
    DataParallel,
    Estimator,
    HuggingFace,
    OnInstanceGroup,
    PyTorch,
    PyTorchDDP,
    TensorFlow,
    TorchDistributed,
)
from sagemaker_dist.contract import KEY, MiB, parse

pytestmark = [
    pytest.mark.timeout(60),
    # the SDK's advice to move to version 3, where a test builds the SDK's own classes
    pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Running within a PipelineSession:UserWarning"),
]

OURS = "123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:0.1.0-torch"
ANOTHER = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
ROLE = "arn:aws:iam::123456789012:role/training"
DATA = {"training": "s3://bucket/data"}
OPTIONS = DataParallel(fusion_bytes=32 * MiB, processes_per_host=2)
GROUPS = [InstanceGroup("train", "ml.c5.9xlarge", 2), InstanceGroup("prepare", "ml.c5.xlarge", 1)]
IN_GROUPS = {"instance_type": None, "instance_count": None, "instance_groups": GROUPS}
PARENTS = {
    Estimator: sagemaker.estimator.Estimator,
    HuggingFace: TheirHuggingFace,
    PyTorch: TheirPyTorch,
    TensorFlow: TheirTensorFlow,
}
WITHOUT = {"debugger_hook_config": False, "disable_profiler": True}  # as our jobs are
METRICS = [{"Name": "loss", "Regex": "loss=(.*)"}]
NAMES = (f"round-{number}" for number in count())


def in_group(strategy):
    return {**IN_GROUPS, "distribution": OnInstanceGroup(strategy=strategy, group="train")}


REQUESTED = {  # options that the sagemaker-dist launcher reads
    "ours": {"distribution": OPTIONS, "image_uri": ANOTHER},
    "ours, group": {**in_group(OPTIONS), "image_uri": ANOTHER},
    "SMDDP": {"distribution": SMDDP()},
    "SMDDP, options": {"distribution": SMDDP(custom_mpi_options="-x A=1")},
    "torch_distributed": {"distribution": TorchDistributed()},
    "torch_distributed, group": in_group(TorchDistributed()),
    "pytorchddp": {"distribution": PyTorchDDP()},
    "mpi": {"distribution": MPI(processes_per_host=2, custom_mpi_options="-x A=1")},
}
ALONE = [name for name in REQUESTED if "group" not in name]  # the SDK's tuner takes no groups
LAUNCHED = [Estimator, HuggingFace, PyTorch]


@pytest.fixture
def build(session, script):
    """Return a function that builds an estimator of any class from valid arguments."""

    def make(kind, **changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": script(),
            "role": ROLE,
            "instance_type": "ml.c5.9xlarge",
            "instance_count": 2,
            "image_uri": OURS,
            "sagemaker_session": session,
            "hyperparameters": {"epochs": 3, "name": "x"},
            "output_kms_key": "key",  # moto echoes none, and the parent's attach needs one
            "metric_definitions": METRICS,
        }
        if PARENTS.get(kind, kind) is TheirHuggingFace:
            arguments["py_version"] = None
        return kind(**{**arguments, **changes})

    return make


def sent(session, built, **how):
    """Return the request of a fit, without the names of jobs."""
    session.requests.clear()
    built.fit(DATA, wait=False, **how)
    (request,) = session.requests
    return json.loads(json.dumps(request).replace(request["TrainingJobName"], "NAME"))


def without_code(request, first):
    """Return a request without the place of its code, which a second job takes from the first."""
    return json.loads(json.dumps(request).replace(first, "NAME"))


@pytest.mark.parametrize("kind", LAUNCHED)
@pytest.mark.parametrize("option", REQUESTED)
def test_a_job_is_attached_to_and_run_again(build, session, kind, option):
    """A second fit after attach sends an equal request, as far as moto describes jobs."""
    built = build(kind, **REQUESTED[option])
    first = sent(session, built)
    name = built.latest_training_job.name
    attached = kind.attach(name, sagemaker_session=session)
    attached.metric_definitions = built.metric_definitions  # moto invents some
    second = without_code(sent(session, attached), name)
    tags = second.pop("Tags")  # the parent asks for those of the first job: none

    assert built.distribution == attached.distribution
    assert (first, []) == (second, tags)


@pytest.mark.parametrize("kind", [HuggingFace, PyTorch])
@pytest.mark.parametrize("strategy", [TorchDistributed(), SMDDP()])
def test_a_job_of_another_image_is_attached_to_as_by_the_parent(build, session, kind, strategy):
    """For a job of another image, the flags of SageMaker's SDK stay hyperparameters."""
    built = build(kind, distribution=strategy, image_uri=ANOTHER)
    built.fit(DATA, wait=False)
    name = built.latest_training_job.name
    attached, theirs = (
        each.attach(name, sagemaker_session=session) for each in (kind, PARENTS[kind])
    )

    assert theirs.hyperparameters() == attached.hyperparameters()
    assert theirs.distribution == attached.distribution


@pytest.fixture
def tune(session, monkeypatch):
    """Return a function that tunes with an estimator, and returns the jobs' definition and the
    tuner.
    """
    client, definitions = session.sagemaker_client, []
    create = client.create_hyper_parameter_tuning_job

    def record(**request):
        definitions.append(json.dumps(request["TrainingJobDefinition"]))
        # which SageMaker adds and moto does not
        request["TrainingJobDefinition"]["StaticHyperParameters"]["_tuning_objective_metric"] = (
            "loss"
        )
        return create(**request)

    def start(estimator):
        tuner = HyperparameterTuner(
            estimator, "loss", {"lr": ContinuousParameter(0.1, 1)}, METRICS, max_jobs=2
        )
        tuner.fit(DATA, wait=False, include_cls_metadata=True, job_name=next(NAMES))
        return json.loads(definitions[-1].replace(estimator._current_job_name, "NAME")), tuner

    monkeypatch.setattr(client, "create_hyper_parameter_tuning_job", record)
    return start


@pytest.mark.parametrize("kind", LAUNCHED)
@pytest.mark.parametrize("option", ALONE)
def test_jobs_of_a_tuner_ask_our_launcher(build, session, tune, kind, option):
    """A tuner's jobs have the hyperparameters of a job without a tuner; attach reads them."""
    built = build(kind, **REQUESTED[option])
    alone = sent(session, built)["HyperParameters"]
    definition, tuner = tune(built)
    static = definition["StaticHyperParameters"]
    attached = HyperparameterTuner.attach(tuner.latest_tuning_job.name, sagemaker_session=session)

    assert launch_part(alone) == launch_part(static)
    assert kind is type(attached.estimator)
    assert built.distribution == attached.estimator.distribution
    assert launch_part(alone) == launch_part(attached.estimator.hyperparameters())


def launch_part(values):
    """Return the hyperparameters that the sagemaker-dist launcher reads."""
    names = {KEY, "sagemaker_instance_type", "sagemaker_distribution_instance_groups"}
    return {
        name: value
        for name, value in values.items()
        if name in names or name.endswith(("torch_distributed_enabled", "pytorch_ddp_enabled"))
    }


@pytest.mark.parametrize("kind", LAUNCHED)
@pytest.mark.parametrize("option", ALONE)
def test_the_best_job_of_a_tuner_is_attached_to(build, session, tune, kind, option):
    """attach works for a tuner's job, which has a value for the tuned hyperparameter."""
    built = build(kind, **REQUESTED[option])
    definition, tuner = tune(built)
    name = f"{tuner.latest_tuning_job.name}-001-0a1b2c3d"
    best_of(session, definition, name)
    best = tuner.best_estimator({"TrainingJobName": name})

    assert built.distribution == best.distribution
    assert launch_part(definition["StaticHyperParameters"]) == launch_part(best.hyperparameters())
    assert "0.5" == str(best.hyperparameters()["lr"]).strip('"')


def best_of(session, definition, name):
    """Return a training job as SageMaker starts it from a tuner's definition."""
    tuned = {"lr": "0.5", "_tuning_objective_metric": '"loss"'}
    resources = definition.get("ResourceConfig") or definition["HyperParameterTuningResourceConfig"]
    algorithm = {**definition["AlgorithmSpecification"]}
    session.sagemaker_client.create_training_job(
        TrainingJobName=name,
        HyperParameters={**definition["StaticHyperParameters"], **tuned},
        AlgorithmSpecification=algorithm,
        ResourceConfig=resources,
        **{
            part: definition[part]
            for part in ("RoleArn", "OutputDataConfig", "StoppingCondition", "InputDataConfig")
        },
    )


TEXTS = {
    name: ParameterString(name)
    for name in ("Name", "Folder", "Level", "Key", "Data", "Plain", "Subnet", "Group")
}
NUMBERS = {name: ParameterInteger(name) for name in ("Epochs", "Seconds", "Ranks")}
TYPE = ParameterString("Type", default_value="ml.c5.9xlarge")
COUNT = ParameterInteger("Count", default_value=2)
RATE = ParameterFloat("Rate")
UNKNOWN = {  # what only the pipeline will know
    "instance_type": TYPE,
    "instance_count": COUNT,
    "hyperparameters": {"epochs": NUMBERS["Epochs"], "lr": RATE, "name": TEXTS["Name"]},
    "output_path": Join(on="/", values=["s3://bucket", TEXTS["Folder"]]),
    "max_run": NUMBERS["Seconds"],
    "environment": {"LEVEL": TEXTS["Level"]},
    "volume_kms_key": TEXTS["Key"],
    "subnets": [TEXTS["Subnet"]],
    "security_group_ids": [TEXTS["Group"]],
}
INPUTS = {
    "training": TrainingInput(TEXTS["Data"], input_mode="FastFile"),
    "plain": TEXTS["Plain"],
    "volume": FileSystemInput("fs-0123456789abcdef0", "EFS", "/data"),
}


def definition_of(pipeline, built):
    """Return the document of a pipeline with one training step."""
    document = pipeline_of(built, pipeline).definition()
    return json.loads(document.replace(built._current_job_name, "NAME"))


def pipeline_of(built, session):
    steps = [TrainingStep("train", step_args=built.fit(INPUTS))]
    parameters = [*TEXTS.values(), *NUMBERS.values(), TYPE, COUNT, RATE]
    return Pipeline("p", parameters, steps=steps, sagemaker_session=session)


@pytest.mark.parametrize("kind", LAUNCHED)
def test_a_pipeline_fills_in_what_a_job_of_ours_leaves_open(build, pipeline, kind):
    """The step is the parent's with our document; pipeline variables are not converted to text."""
    common = {**UNKNOWN, "sagemaker_session": pipeline, "base_job_name": "base", **WITHOUT}
    built = build(kind, distribution=OPTIONS, **common)
    ours = definition_of(pipeline, built)
    theirs = definition_of(pipeline, build(PARENTS[kind], **{**common, **metrics_of(built)}))

    (step,) = ours["Steps"]
    resources = step["Arguments"]["ResourceConfig"]

    assert OPTIONS == parse(step["Arguments"]["HyperParameters"].pop(KEY))
    assert theirs == ours
    assert {"Get": "Parameters.Type"} == resources["InstanceType"]
    assert {"Get": "Parameters.Count"} == resources["InstanceCount"]


@pytest.mark.parametrize(
    ("kind", "image", "distribution"),
    [
        (PyTorch, OURS, {"torch_distributed": {"enabled": True}}),
        (HuggingFace, OURS, {"torch_distributed": {"enabled": True}}),
        (HuggingFace, OURS, {"pytorchddp": {"enabled": True}}),
        (PyTorch, ANOTHER, {"torch_distributed": {"enabled": True}}),
        (TensorFlow, ANOTHER, MPI(processes_per_host=2).distribution()),
        (
            PyTorch,
            ANOTHER,
            {"mpi": {"enabled": True, "processes_per_host": NUMBERS["Ranks"]}},
        ),
        (TensorFlow, ANOTHER, None),
    ],
)
def test_a_pipeline_fills_in_what_asks_by_the_keys_of_the_sdk(
    build, pipeline, kind, image, distribution
):
    """Distributions of the SDK give the parent's flags, also if our launcher reads them."""
    common = {**UNKNOWN, "sagemaker_session": pipeline, "base_job_name": "base", **WITHOUT}
    common |= {"image_uri": image, "distribution": distribution}

    built = build(kind, **common)
    theirs = build(PARENTS[kind], **{**common, **metrics_of(built)})

    assert definition_of(pipeline, theirs) == definition_of(pipeline, built)


def metrics_of(built):
    """Return the metric definitions of a request, ours included."""
    return {
        "metric_definitions": built.metric_definitions,
        "enable_sagemaker_metrics": built.enable_sagemaker_metrics,
    }


@pytest.mark.parametrize("kind", LAUNCHED)
def test_a_pipeline_is_stored_as_it_was_written(build, pipeline, session, kind):
    """SageMaker returns the pipeline's document with our launcher's hyperparameters."""
    built = build(kind, distribution=OPTIONS, **UNKNOWN, sagemaker_session=pipeline)
    stored = pipeline_of(built, session)
    stored.upsert(role_arn=ROLE)
    described = session.sagemaker_client.describe_pipeline(PipelineName=stored.name)
    (written,) = json.loads(described["PipelineDefinition"])["Steps"]

    assert OPTIONS == parse(written["Arguments"]["HyperParameters"][KEY])
