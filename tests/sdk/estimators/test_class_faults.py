# SPDX-License-Identifier: Apache-2.0
"""Faults that each class finds by itself, before anything is sent."""

import pytest
from error_fields import fields_raised

from sagemaker_dist import (
    DataParallel,
    Estimator,
    HuggingFace,
    LocalSession,
    ModelParallel,
    OptionError,
    TensorFlow,
)
from sagemaker_dist.contract import KEY, parse
from sagemaker_dist.runners import RecordingRunner

pytestmark = pytest.mark.timeout(60)

OURS = {"distribution": DataParallel()}
MWMS = {"multi_worker_mirrored_strategy": {"enabled": True}}
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": "-v"}}}
OFF = {"smdist": {"dataparallel": {"enabled": False}}}


@pytest.fixture
def arguments(script):
    return {
        "entry_point": "train.py",
        "source_dir": script(),
        "role": "arn:aws:iam::123456789012:role/training",
        "instance_type": "ml.c5.xlarge",
        "instance_count": 2,
    }


@pytest.mark.parametrize(
    ("kind", "changes", "about", "fault"),
    [
        (
            TensorFlow,
            {"distribution": ModelParallel(pipeline_parallel_degree=2, sharding="full")},
            "sharding",
            "unsupported",
        ),
        (HuggingFace, {**OURS, "pytorch_version": "2.1"}, "pytorch_version", "unsupported"),
        (
            HuggingFace,
            {**OURS, "transformers_version": "4.36"},
            "transformers_version",
            "unsupported",
        ),
        (
            HuggingFace,
            {**OURS, "tensorflow_version": "2.6", "image_uri": "mine:1"},
            "tensorflow_version",
            "conflict",
        ),
        (
            HuggingFace,
            {"transformers_version": "4.36", "pytorch_version": "2.1"},
            "py_version",
            "missing",
        ),
        (HuggingFace, {**OURS, "entry_point": None}, "entry_point", "missing"),
        (Estimator, OURS, "image_uri", "missing"),
        (
            Estimator,
            {"image_uri": "mine:1", "distribution": {"pytorchxla": {"enabled": True}}},
            "distribution.pytorchxla",
            "unsupported",
        ),
        (
            Estimator,
            {"image_uri": "mine:1", "distribution": {"smdist": {"dataparallel": {}}, **MWMS}},
            "distribution.multi_worker_mirrored_strategy",
            "unsupported",
        ),
        (Estimator, {"image_uri": "mine:1", "entry_point": None}, "source_dir", "missing"),
        (
            Estimator,
            {**OURS, "image_uri": "mine:1", "entry_point": None, "source_dir": None},
            "entry_point",
            "missing",
        ),
        (
            Estimator,
            {"entry_point": None, "source_dir": None, "instance_type": "local_process"},
            "entry_point",
            "missing",
        ),
    ],
)
def test_faults(arguments, kind, changes, about, fault):
    assert [(about, fault)] == fields_raised(lambda: kind(**{**arguments, **changes}))


def test_text_of_a_fault(arguments):
    """The text says in which image a script may be left out."""
    changes = {"image_uri": "mine:1", "entry_point": None, "source_dir": None}
    with pytest.raises(OptionError) as caught:
        Estimator(**{**arguments, **OURS, **changes})

    assert str(caught.value) == (
        "entry_point is left out: the launcher of sagemaker_dist runs a script. Pass the path of"
        " the script, or name a script in the image's /opt/ml/code by the hyperparameter"
        " sagemaker_program."
    )


@pytest.mark.parametrize("changes", [{}, {"container_entry_point": ["python", "/run.py"]}])
def test_an_image_may_bring_its_own_program(changes):
    """A container may run the image's own program: a script is not required."""
    runner = RecordingRunner()
    built = Estimator(
        "mine:1",
        instance_type="local",
        instance_count=2,
        hyperparameters={"name": "x", "lr": 0.1},
        sagemaker_session=LocalSession(runner=runner),
        **changes,
    )
    built.fit({"training": "s3://bucket/data"}, wait=False)
    (sent,) = runner.requests

    assert {"name": "x", "lr": "0.1"} == sent["HyperParameters"]
    assert "mine:1" == sent["AlgorithmSpecification"]["TrainingImage"]
    assert "LocalSource" not in sent
    assert changes.get("container_entry_point") == sent["AlgorithmSpecification"].get(
        "ContainerEntrypoint"
    )


def test_an_image_with_our_runtime_may_bring_its_script():
    """A script inside the image is named by SageMaker's hyperparameter sagemaker_program."""
    runner = RecordingRunner()
    built = Estimator(
        "mine:1",
        instance_type="local",
        instance_count=2,
        hyperparameters={"sagemaker_program": "train.py"},
        sagemaker_session=LocalSession(runner=runner),
        **OURS,
    )
    built.fit(wait=False, job_name="job")
    sent = runner.requests[0]["HyperParameters"]

    assert DataParallel() == parse(sent.pop(KEY))
    assert {"sagemaker_program": "train.py"} == sent
    assert {"sagemaker_program": "train.py"} == built._hyperparameters


@pytest.mark.parametrize(
    "distribution", [MWMS, SMDDP, {**MWMS, "smdist": {"dataparallel": {"enabled": False}}}]
)
def test_tensorflow_passes_on_what_sagemakers_images_start(arguments, monkeypatch, distribution):
    """Distributions of SageMaker's TensorFlow images are passed on, AWS's data parallelism
    included.
    """
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    gpus = {**arguments, "instance_type": "ml.p4d.24xlarge"}
    built = TensorFlow(
        **gpus, framework_version="2.11", py_version="py39", distribution=distribution
    )

    assert {
        key: part for key, part in distribution.items() if key != "smdist"
    } == built.distribution


def test_the_old_name_of_distribution_is_read(arguments):
    """TensorFlow accepts the old argument `distributions`, as its parent does."""
    with pytest.warns(DeprecationWarning, match="distributions"):
        found = fields_raised(
            lambda: TensorFlow(**arguments, distributions=ModelParallel(bf16=True))
        )

    assert [("bf16", "unsupported")] == found
