# SPDX-License-Identifier: Apache-2.0
"""`check` sees all of a ModelTrainer; our ModelTrainer asks it by itself."""

from types import SimpleNamespace

import pytest
from error_fields import fields_of, fields_raised
from pydantic import ValidationError

from sagemaker_dist import metric_definitions
from sagemaker_dist.packaging import gpu_faults
from sagemaker_dist.packaging.image_labels import ImageLabels
from sagemaker_dist.trainer import DataParallelConfig, ModelTrainer, check
from sagemaker_dist.trainer.trainer_facts import training_of
from sagemaker_dist.trainer.trainer_job import Input


def test_facts_are_the_trainers(sdk, arguments, tmp_path):
    given = arguments(
        distributed=DataParallelConfig(lanes=2),
        hyperparameters={"a": "x", "b": True, "c": {"d": 1}, "e": None},
        environment={"NAME": "value"},
        input_data_config=[sdk.InputData(channel_name="own", data_source=str(tmp_path))],
    )
    further = {name: "text/csv" for name in ("content_type",) if name in sdk.InputData.model_fields}
    inputs = [sdk.InputData(channel_name="more", data_source="s3://b/p", **further)]
    training = training_of(sdk.ModelTrainer(**given), inputs, waits=False)

    assert DataParallelConfig(lanes=2).options == training.options
    assert ("DataParallelConfig", "train.py", "") == (
        training.launcher,
        training.entry_script,
        training.command,
    )
    assert {"a": "x", "b": "true", "c": '{"d": 1}', "e": "null"} == training.hyperparameters
    assert (Input(name="own"), Input(name="more", **further)) == training.inputs
    assert ("local_cpu", 2, 0) == (
        training.instance_type,
        training.instance_count,
        training.num_groups,
    )
    assert {"NAME": "value"} == training.environment
    assert (True, True, False) == (training.uses_launcher, training.runs_here, training.waits)


def test_hyperparameters_are_written_as_model_trainer_does(sdk, arguments, request_of):
    values = {"a": "it's", "b": 0.1, "c": [1, None], "d": "true", "e": None, "f": object}
    trainer = sdk.ModelTrainer(**arguments(hyperparameters=values))

    written = request_of(trainer)["hyper_parameters"]

    assert written == training_of(trainer).hyperparameters


def test_what_a_pipeline_will_know_is_not_judged(sdk, arguments):
    """SageMaker's parameters of a pipeline are unlike any value."""
    given = {"hyperparameters": {"lr": _Parameter(), "n": 3}, "environment": {"A": "b"}}
    trainer = sdk.ModelTrainer(**arguments(**given))
    training = training_of(trainer)
    in_pipeline = training_of(SimpleNamespace(**{**dict(trainer), "training_image": _Parameter()}))

    assert {"n": "3"} == training.hyperparameters
    assert (None, True) == (in_pipeline.image, in_pipeline.uses_launcher)


class PipelineVariable:
    """The SDK's class of this name; its parameters are built on it."""


class _Parameter(PipelineVariable):
    pass


def test_a_good_job_passes(sdk, arguments):
    given = arguments(distributed=DataParallelConfig(), hyperparameters={"a.b": "it's"})

    check(sdk.ModelTrainer(**given))
    check(ModelTrainer(**given))


def test_all_faults_come_at_once(sdk, arguments, tmp_path):
    (tmp_path / "root/shared").mkdir()
    (tmp_path / "root/algo-2").mkdir()
    trainer = sdk.ModelTrainer(
        **arguments(
            training_image="mine",
            distributed=sdk.MPI(),
            hyperparameters={"a.b": "it's"},
        )
    )
    inputs = [sdk.InputData(channel_name="my-data", data_source=str(tmp_path))]

    assert [
        ("distributed", "unsupported"),
        ('hyperparameters."a.b"', "shell_name"),
        ('hyperparameters."a.b"', "shell_quote"),
        ("inputs.my-data", "shell_name"),
        ("local_container_root", "not_empty"),
        ("wait", "conflict"),
    ] == fields_raised(lambda: check(trainer, inputs, wait=False))


def test_groups_and_defaults_of_compute(sdk, arguments):
    groups = [
        sdk.InstanceGroup(instance_group_name=name, instance_type="ml.c5.xlarge", instance_count=1)
        for name in ("a", "b")
    ]
    several = sdk.ModelTrainer(**arguments(compute=sdk.Compute(instance_groups=groups)))
    default = sdk.ModelTrainer(**arguments(compute=None))

    assert (None, None, 2) == _instances(training_of(several))
    assert ("ml.m5.xlarge", 1, 0) == _instances(training_of(default))


def _instances(training):
    return training.instance_type, training.instance_count, training.num_groups


def test_ours_checks_when_it_is_built(arguments):
    """Also what SageMaker's own answers with an AttributeError."""
    given = arguments(distributed=DataParallelConfig()) | {"source_code": None}
    with pytest.raises(ValidationError) as caught:
        ModelTrainer(**given)
    (wrong,) = caught.value.errors()

    assert [("source_code", "missing")] == fields_of(wrong["ctx"]["error"])


def test_ours_checks_when_it_trains(sdk, arguments, tmp_path):
    trainer = ModelTrainer(**arguments(distributed=DataParallelConfig()))
    inputs = [sdk.InputData(channel_name="code", data_source=str(tmp_path))]

    assert [("inputs.code", "reserved")] == fields_raised(lambda: trainer.train(inputs))


def test_ours_has_our_metrics(sdk, arguments):
    """And those of the user; an empty list is an answer, and other launchers have none of them."""
    trainer = ModelTrainer(**arguments(distributed=DataParallelConfig()))
    by_default = {each.name for each in trainer._metric_definitions}
    own = sdk.MetricDefinition(name="smdist:step", regex="mine")
    trainer.with_metric_definitions([own])

    assert {each["Name"] for each in metric_definitions()} == by_default
    assert "mine" == trainer._metric_definitions[0].regex
    assert by_default == {each.name for each in trainer._metric_definitions}
    assert [] == trainer.with_metric_definitions([])._metric_definitions
    assert ModelTrainer(**arguments(distributed=sdk.Torchrun()))._metric_definitions is None


def test_gpus_are_told_of(sdk, arguments):
    trainer = sdk.ModelTrainer(**arguments(distributed=DataParallelConfig()))
    trainer.training_mode = sdk.Mode.SAGEMAKER_TRAINING_JOB
    trainer.compute = sdk.Compute(instance_type="ml.p4d.24xlarge", instance_count=2)

    with pytest.warns(UserWarning, match=r"ml\.p4d\.24xlarge has 8 GPUs"):
        check(trainer)


def test_an_image_without_code_for_the_gpus_is_refused(sdk, arguments, monkeypatch):
    """The fault is found before SageMaker's `train` is called."""
    labels = {"sagemaker-dist.framework": "torch", "sagemaker-dist.gpu-code": "sm_80"}
    monkeypatch.setattr(gpu_faults, "ecr_labels", lambda *_: ImageLabels(labels=labels))
    trainer = ModelTrainer(**arguments())
    compute = sdk.Compute(instance_type="ml.p3.2xlarge", instance_count=1)
    trainer = trainer.model_copy(
        update={
            "compute": compute,
            "training_mode": sdk.Mode.SAGEMAKER_TRAINING_JOB,
            "sagemaker_session": SimpleNamespace(boto_session=None),
        }
    )

    assert [("instance_type", "no_gpu_code")] == fields_raised(lambda: trainer.train())
