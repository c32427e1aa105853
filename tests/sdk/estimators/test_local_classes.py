# SPDX-License-Identifier: Apache-2.0
"""Local jobs of every class: their requests and their faults."""

import json

import pytest
from error_fields import fields_of, fields_raised

from sagemaker_dist import (
    MPI,
    SMDDP,
    DataParallel,
    Estimator,
    HuggingFace,
    LocalSession,
    MultiWorkerMirroredStrategy,
    OptionError,
    ParameterServer,
    PyTorch,
    PyTorchDDP,
    TensorFlow,
    TorchDistributed,
)
from sagemaker_dist.contract import KEY, parse
from sagemaker_dist.packaging import default_tag
from sagemaker_dist.planning import plan_local_job
from sagemaker_dist.runners import RecordingRunner

pytestmark = pytest.mark.timeout(60)

ALL = [Estimator, HuggingFace, PyTorch, TensorFlow]
IMAGES = {HuggingFace: "torch", PyTorch: "torch", TensorFlow: "tensorflow"}
STEMS = {
    Estimator: "training-job-",
    HuggingFace: "huggingface-pytorch-training-",
    PyTorch: "pytorch-training-",
    TensorFlow: "tensorflow-training-",
}


class Described(RecordingRunner):
    """Stub runner that describes jobs with the fields that the parent's attach reads."""

    def describe(self, name):
        return {"TrainingJobArn": f"training-job/{name}", **super().describe(name)}


@pytest.fixture
def runner():
    return Described()


@pytest.fixture
def build(runner, script):
    """Return a function that builds an estimator of any class whose jobs are recorded."""

    def make(kind, **changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": script(),
            "instance_type": "local_process",
            "instance_count": 2,
            "sagemaker_session": LocalSession(runner=runner),
        }
        return kind(**{**arguments, **changes})

    return make


@pytest.mark.parametrize("kind", ALL)
def test_a_job_without_our_distribution_is_one_process_per_host(build, runner, script, kind):
    """Without a distribution each host runs one process; names and encoding are SageMaker's."""
    build(kind, hyperparameters={"epochs": 3, "name": "x"}).fit(wait=False)
    (sent,) = runner.requests
    job = plan_local_job(sent)

    assert job.name.startswith(STEMS[kind])
    assert (2, 1, False) == (len(job.hosts), job.processes_per_host, job.has_world)
    assert ("3", '"x"') == (job.hyperparameters["epochs"], job.hyperparameters["name"])
    assert {"Folder": script(), "Only": None, "Dependencies": []} == sent["LocalSource"]
    assert '"train.py"' == job.hyperparameters["sagemaker_program"]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("has_folder", [True, False])
def test_our_options_arrive(build, runner, script, monkeypatch, kind, has_folder):
    monkeypatch.chdir(script())
    options = DataParallel(processes_per_host=3)
    changes = {} if has_folder else {"source_dir": None}
    build(kind, distribution=options, **changes).fit(wait=False)
    (sent,) = runner.requests

    job = plan_local_job(sent)

    assert options == parse(sent["HyperParameters"][KEY])
    assert (3, True) == (job.processes_per_host, job.has_world)
    assert ("tensorflow" if kind is TensorFlow else None) == job.framework


@pytest.mark.parametrize("kind", [PyTorch, TensorFlow])
def test_a_version_that_is_not_installed_is_refused_without_talk_of_images(build, kind):
    versions = {"framework_version": "2.5", "py_version": "py310"}
    with pytest.raises(OptionError) as caught:
        build(kind, distribution=DataParallel(), **versions)

    assert [("framework_version", "unsupported")] == fields_of(caught.value)
    assert "image_uri" not in caught.value.hint


@pytest.mark.parametrize("kind", IMAGES)
def test_containers_are_of_the_image_built_for_the_framework(build, runner, kind):
    build(kind, instance_type="local").fit(wait=False)

    assert (
        default_tag(IMAGES[kind]) == runner.requests[0]["AlgorithmSpecification"]["TrainingImage"]
    )


@pytest.mark.parametrize(
    ("kind", "versions", "image"),
    [
        (PyTorch, {"framework_version": "2.2"}, "pytorch-training:2.2-gpu-py310"),
        (TensorFlow, {"framework_version": "2.13"}, "tensorflow-training:2.13-gpu-py310"),
        (
            HuggingFace,
            {"transformers_version": "4.36", "pytorch_version": "2.1"},
            "huggingface-pytorch-training:2.1-transformers4.36-gpu-py310-cu121-ubuntu20.04",
        ),
    ],
)
def test_versions_choose_an_image_of_sagemakers(build, kind, versions, image):
    built = build(kind, instance_type="local_gpu", py_version="py310", **versions)

    assert built.training_image_uri().endswith(image)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("has_folder", [True, False])
def test_attach_finds_the_code_again(build, runner, script, monkeypatch, kind, has_folder):
    """A second fit after attach sends an equal request with another name."""
    monkeypatch.chdir(script())
    changes = {} if has_folder else {"source_dir": None}
    tags = [{"Key": "team", "Value": "a"}]
    built = build(kind, hyperparameters={"epochs": "3", "name": "x"}, tags=tags, **changes)
    built.output_kms_key = "key"  # which the parent's attach wants back
    built.fit(wait=False, job_name="first")
    attached = kind.attach("first", sagemaker_session=built.sagemaker_session)
    same = built.hyperparameters() == attached.hyperparameters()
    attached.fit(wait=False, job_name="second")
    first, second = (json.dumps(request) for request in runner.requests)

    assert same
    assert json.loads(first) == json.loads(second.replace("second", "first"))


@pytest.mark.parametrize("strategy", [ParameterServer(), MultiWorkerMirroredStrategy()])
def test_strategies_of_tensorflow_are_asked_for_by_sagemakers_flags(build, runner, strategy):
    """TensorFlow's strategies are sent as SageMaker's flags, and attach reads them."""
    built = build(TensorFlow, distribution=strategy)
    built.output_kms_key = "key"  # which the parent's attach wants back
    built.fit(wait=False, job_name="job")
    attached = TensorFlow.attach("job", sagemaker_session=built.sagemaker_session)
    planned = plan_local_job(runner.requests[0])

    assert "true" == planned.hyperparameters[f"sagemaker_{strategy.key}_enabled"]
    assert ("tensorflow", True) == (planned.framework, planned.has_world)
    assert strategy.distribution() == attached.distribution
    assert built.hyperparameters() == attached.hyperparameters()


@pytest.mark.parametrize(
    ("instance_type", "given", "arrives"),
    [
        ("local_process", None, '"../model"'),
        ("local", None, '"/opt/ml/model"'),
        ("local", "s3://bucket/model", '"s3://bucket/model"'),
        ("local_process", False, None),
    ],
)
def test_model_dir_of_a_local_job_is_what_becomes_the_model(
    build, runner, instance_type, given, arrives
):
    """model_dir of a local job is the directory that becomes model.tar.gz."""
    built = build(TensorFlow, instance_type=instance_type, model_dir=given)
    built.fit(wait=False, job_name="job")

    assert arrives == runner.requests[0]["HyperParameters"].get("model_dir")


@pytest.mark.parametrize("option", [SMDDP(), TorchDistributed(), PyTorchDDP()])
def test_an_image_of_ones_own_is_asked_by_our_launchers_names(build, option):
    """A local job with an image_uri sends the hyperparameters of the sagemaker-dist launcher."""
    built = build(PyTorch, instance_type="local", image_uri="mine:1", distribution=option)

    assert built._parsed.is_launched


@pytest.mark.parametrize("kind", [PyTorch, TensorFlow])
def test_sagemakers_images_start_no_ranks_here(build, kind):
    versions = {"framework_version": "2.1", "py_version": "py310"}
    found = fields_raised(
        lambda: build(kind, instance_type="local", distribution=MPI(), **versions)
    )

    assert [("distribution.mpi", "unsupported")] == found
