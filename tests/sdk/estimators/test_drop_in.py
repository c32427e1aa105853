# SPDX-License-Identifier: Apache-2.0
"""Each class sends what its parent sends, plus sagemaker-dist's additions; moto plays SageMaker."""

import io
import json
import re
import tarfile
from itertools import count

import pytest
import sagemaker
from error_fields import fields_of
from sagemaker.huggingface import HuggingFace as TheirHuggingFace
from sagemaker.pytorch import PyTorch as TheirPyTorch
from sagemaker.tensorflow import TensorFlow as TheirTensorFlow
from sagemaker.tuner import ContinuousParameter, HyperparameterTuner
from sagemaker.workflow.parameters import ParameterString
from sagemaker.workflow.pipeline import Pipeline
from sagemaker.workflow.steps import TrainingStep

from sagemaker_dist import (
    DataParallel,
    Estimator,
    HuggingFace,
    OptionError,
    PyTorch,
    TensorFlow,
    metric_definitions,
)
from sagemaker_dist.contract import KEY, MiB, parse

pytestmark = [
    pytest.mark.timeout(60),
    # the SDK's advice to move to version 3, where a test builds the SDK's own classes
    pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Running within a PipelineSession:UserWarning"),
]

METERED = {"metric_definitions": metric_definitions(), "enable_sagemaker_metrics": True}
IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
ROLE = "arn:aws:iam::123456789012:role/training"
OPTIONS = DataParallel(fusion_bytes=32 * MiB)
PARENTS = {
    Estimator: sagemaker.estimator.Estimator,
    HuggingFace: TheirHuggingFace,
    PyTorch: TheirPyTorch,
    TensorFlow: TheirTensorFlow,
}
VERSIONS = {  # that choose an image of SageMaker's
    Estimator: {"image_uri": "other:1"},
    HuggingFace: {"transformers_version": "4.36", "pytorch_version": "2.1", "py_version": "py310"},
    PyTorch: {"framework_version": "2.5", "py_version": "py311"},
    TensorFlow: {"framework_version": "2.14", "py_version": "py310"},
}
DISTRIBUTED = [Estimator, HuggingFace, PyTorch]
RANGES = {"lr": ContinuousParameter(0.1, 1)}
METRICS = [{"Name": "loss", "Regex": "loss=(.*)"}]
NAMES = (f"job-{number}" for number in count())


@pytest.fixture
def build(session, script):
    """Return a function that builds an estimator of any class from valid arguments."""

    def make(kind, **changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": script(),
            "role": ROLE,
            "instance_type": "ml.c5.xlarge",
            "instance_count": 2,
            "image_uri": IMAGE,
            "sagemaker_session": session,
            "hyperparameters": {"epochs": 3, "name": "x"},
            "output_kms_key": "key",  # moto echoes none, and the parent's attach needs one
        }
        if PARENTS.get(kind, kind) is TheirHuggingFace:
            arguments["py_version"] = None
        return kind(**{**arguments, **changes})

    return make


def sent(session, built, **how):
    """Return the request of a fit, without the job's name."""
    session.requests.clear()
    built.fit({"training": "s3://bucket/data"}, wait=False, **how)
    name = session.requests[0]["TrainingJobName"]
    return json.loads(json.dumps(session.requests[0]).replace(name, "NAME"))


@pytest.mark.parametrize("kind", PARENTS)
@pytest.mark.parametrize("changes", [{}, VERSIONS, {"source_dir": None}])
def test_without_our_distribution_the_request_is_the_parents(
    build, session, script, monkeypatch, kind, changes
):
    monkeypatch.chdir(script())
    if changes is VERSIONS:
        changes = {"image_uri": None, "instance_type": "ml.g4dn.xlarge", **VERSIONS[kind]}

    assert sent(session, build(PARENTS[kind], **changes)) == sent(session, build(kind, **changes))


@pytest.mark.parametrize("kind", DISTRIBUTED)
@pytest.mark.parametrize("changes", [{}, {"hyperparameters": None}])
def test_our_distribution_is_one_hyperparameter(build, session, kind, changes):
    """A distribution adds one hyperparameter and metrics, and removes debugger and profiler."""
    request = sent(session, build(kind, distribution=OPTIONS, **changes))
    without = {"debugger_hook_config": False, "disable_profiler": True, **METERED}
    wire = request["HyperParameters"].pop(KEY)

    assert OPTIONS == parse(wire)
    assert sent(session, build(PARENTS[kind], **without, **changes)) == request


@pytest.mark.parametrize("kind", PARENTS)
def test_arguments_are_in_the_parents_order(session, script, kind):
    """Positional arguments have the parent's order and number."""
    given = {
        Estimator: (IMAGE, ROLE, 2, "ml.c5.xlarge", 60, 31, None, 7200, "Pipe"),
        HuggingFace: (None, "a.py", None, None, None, script(), {"a": 1}, IMAGE, None, None),
        PyTorch: ("a.py", None, None, script(), {"a": 1}, IMAGE, None, None, None, None),
        TensorFlow: (None, None, False, IMAGE, None, None),
    }[kind]
    named = {"role": ROLE, "instance_count": 2, "instance_type": "ml.c5.xlarge"}
    more = {} if kind is Estimator else named
    more |= {"entry_point": "a.py"} if kind is TensorFlow else {}
    ours = kind(*given, sagemaker_session=session, **more)
    theirs = PARENTS[kind](*given, sagemaker_session=session, **more)
    left_out = {"tensorboard_app", "_parsed", "_finds_image", "_script", "collection_configs"}
    left_out |= {"max_cost", "price_per_hour", "_is_named"}
    found = {**vars(ours), "max_run": ours.max_run}
    del found["_max_run"]

    assert {name: value for name, value in vars(theirs).items() if name not in left_out} == {
        name: value for name, value in found.items() if name not in left_out
    }


@pytest.mark.parametrize("kind", PARENTS)
def test_a_misspelt_argument_is_named(build, kind):
    with pytest.raises(OptionError) as caught:
        build(kind, use_spot_instance=True)

    assert [("use_spot_instance", "unknown")] == fields_of(caught.value)
    assert "Did you mean 'use_spot_instances'?" == caught.value.hint


@pytest.mark.parametrize("kind", PARENTS)
def test_too_many_arguments_are_refused(kind):
    with pytest.raises(TypeError):
        kind(*[None] * 60)


@pytest.mark.parametrize("kind", PARENTS)
@pytest.mark.filterwarnings("ignore:.* has been renamed in sagemaker>=2:DeprecationWarning")
def test_names_of_version_1_are_still_read(build, kind):
    old = {"image_name": IMAGE, "train_instance_type": "ml.c4.xlarge", "train_instance_count": 3}
    new = {"image_uri": None, "instance_type": None, "instance_count": None}
    built = build(kind, **{**new, **old})

    assert (IMAGE, "ml.c4.xlarge", 3) == (
        built.image_uri,
        built.instance_type,
        built.instance_count,
    )


@pytest.mark.parametrize("kind", PARENTS)
def test_attach_restores_what_was_definitions(build, session, kind):
    """A second fit after attach sends an equal request, except for the job's name."""
    options = OPTIONS if kind in DISTRIBUTED else None
    built = build(kind, distribution=options)
    built.fit(wait=False)
    attached = kind.attach(built.latest_training_job.name, sagemaker_session=session)

    assert type(built) is type(attached)
    assert getattr(built, "distribution", None) == getattr(attached, "distribution", None)
    assert KEY not in attached._hyperparameters
    assert built.hyperparameters() == attached.hyperparameters()
    assert (built.model_data, IMAGE) == (attached.model_data, attached.training_image_uri())


@pytest.fixture
def tuning(session, monkeypatch):
    """Return a function that tunes, and returns the definition of the training jobs and the tuning
    job's name.
    """
    client, definitions = session.sagemaker_client, []
    create = client.create_hyper_parameter_tuning_job

    def record(**request):
        job = request["TrainingJobDefinition"]
        definitions.append(json.dumps(job))
        # which SageMaker adds and moto does not
        job["StaticHyperParameters"]["_tuning_objective_metric"] = "loss"
        return create(**request)

    def tune(estimator):
        tuner = HyperparameterTuner(estimator, "loss", dict(RANGES), METRICS, max_jobs=2)
        how = {"wait": False, "include_cls_metadata": True, "job_name": next(NAMES)}
        tuner.fit({"training": "s3://bucket/data"}, **how)
        return json.loads(definitions[-1].replace(estimator._current_job_name, "NAME")), how[
            "job_name"
        ]

    monkeypatch.setattr(client, "create_hyper_parameter_tuning_job", record)
    return tune


@pytest.mark.parametrize("kind", PARENTS)
def test_a_tuner_asks_for_what_it_asks_with_the_parent(build, session, tuning, kind):
    """Our hyperparameter is among the static ones, and attach returns our class. The key of the
    code has a digest, because the tuner has a name of the caller's.
    """
    options = OPTIONS if kind in DISTRIBUTED else None
    ours, name = tuning(build(kind, distribution=options))
    theirs, _ = tuning(build(PARENTS[kind]))
    module = ours["StaticHyperParameters"].pop("sagemaker_estimator_module")
    theirs["StaticHyperParameters"].pop("sagemaker_estimator_module")
    wire = ours["StaticHyperParameters"].pop(KEY, None)
    attached = HyperparameterTuner.attach(name, sagemaker_session=session)
    place = "sagemaker_submit_directory"
    ours["StaticHyperParameters"][place], num_digests = re.subn(
        "/source/[0-9a-f]{32}/", "/source/", ours["StaticHyperParameters"][place]
    )

    assert json.dumps(kind.__module__) == module
    assert int(kind in DISTRIBUTED) == num_digests
    assert theirs == ours
    assert options == (parse(wire) if wire else None)
    assert kind is type(attached.estimator)
    assert options == attached.estimator._parsed.engine


def definition(pipeline, built):
    """Return the arguments of a training step."""
    steps = [TrainingStep("train", step_args=built.fit({"training": "s3://bucket/data"}))]
    document = Pipeline("p", steps=steps, sagemaker_session=pipeline).definition()
    (step,) = json.loads(document.replace(built._current_job_name, "NAME"))["Steps"]
    return step["Arguments"]


@pytest.mark.parametrize("kind", PARENTS)
def test_a_step_of_a_pipeline_is_the_parents(build, pipeline, kind):
    """Pipeline variables stay variables, and our options are in the step."""
    options = OPTIONS if kind in DISTRIBUTED else None
    unknown = {"instance_type": ParameterString("Type", default_value="ml.c5.xlarge")}
    common = {**unknown, "sagemaker_session": pipeline, "base_job_name": "base"}
    without = {"debugger_hook_config": False, "disable_profiler": True}
    ours = definition(pipeline, build(kind, distribution=options, **common, **without))
    metered = METERED if options else {}
    theirs = definition(pipeline, build(PARENTS[kind], **common, **without, **metered))
    wire = ours["HyperParameters"].pop(KEY, None)

    assert options == (parse(wire) if wire else None)
    assert theirs == ours


@pytest.mark.parametrize("kind", PARENTS)
def test_a_model_is_the_parents(build, session, kind):
    """create_model() and deploy() use the image that the user named."""
    options = OPTIONS if kind in DISTRIBUTED else None
    containers = []
    named = {**VERSIONS[kind], "image_uri": IMAGE}
    for built in (build(kind, distribution=options, **named), build(PARENTS[kind], **named)):
        built.fit(wait=False, job_name=next(NAMES))
        put_model(session, built.model_data)
        model = built.create_model(name="model")
        predictor = built.deploy(1, "ml.c5.xlarge", wait=False)
        name = predictor.endpoint_name
        client = session.sagemaker_client
        config = client.describe_endpoint(EndpointName=name)["EndpointConfigName"]
        variants = client.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"]
        served = client.describe_model(ModelName=variants[0]["ModelName"])["PrimaryContainer"]
        text = json.dumps([type(model).__name__, model.image_uri, type(predictor).__name__, served])
        job = built.latest_training_job.name
        containers.append(text.replace(job, "JOB").replace(variants[0]["ModelName"], "MODEL"))

    assert IMAGE in containers[0]
    assert containers[1] == containers[0]


def put_model(session, uri):
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo("weights"))
    session.boto_session.client("s3").put_object(Bucket=bucket, Key=key, Body=archive.getvalue())
