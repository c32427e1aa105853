# SPDX-License-Identifier: Apache-2.0
"""An estimator uploads one secret beside its code, and its request stays as it is without one."""

import io
import json
import tarfile
from contextlib import suppress
from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError
from sagemaker.tuner import ContinuousParameter, HyperparameterTuner
from sagemaker.workflow.pipeline import Pipeline
from sagemaker.workflow.steps import TrainingStep

from sagemaker_dist import DataParallel, PyTorch
from sagemaker_dist.contract.job_secret import SUFFIX, secret_of_job
from sagemaker_dist.errors import OptionError

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::sagemaker.deprecations.SageMakerV2DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Running within a PipelineSession:UserWarning"),
]

IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mine:1"
ROLE = "arn:aws:iam::123456789012:role/training"


@pytest.fixture
def estimator(session, script):
    """Return a function that builds an estimator, with the test's changes."""

    def build(**changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": changes.get("source_dir") or script(),
            "role": ROLE,
            "instance_type": "ml.c5.xlarge",
            "instance_count": 2,
            "image_uri": IMAGE,
            "sagemaker_session": session,
            "distribution": DataParallel(),
        }
        return PyTorch(**{**arguments, **changes})

    return build


@pytest.fixture
def objects(session):
    """Return a function that reads the objects whose key contains a text, by key."""
    s3 = session.boto_session.client("s3")

    def read(part):
        found = s3.list_objects_v2(Bucket="bucket").get("Contents", [])
        keys = [each["Key"] for each in found if part in each["Key"]]
        return {key: s3.get_object(Bucket="bucket", Key=key) for key in keys}

    return read


def test_the_secret_is_beside_the_code_and_in_no_request(estimator, session, objects):
    estimator().fit(wait=False)
    (sent,) = session.requests
    found = objects(f"{sent['TrainingJobName']}/source/")
    code, secret = sorted(found)
    text = found[secret]["Body"].read()

    assert f"{code}.secret" == secret
    assert 64 == len(text)
    assert text.decode() not in json.dumps(sent)
    assert "aws:kms" == found[code]["ServerSideEncryption"] == found[secret]["ServerSideEncryption"]


@pytest.fixture
def undescribed(session, monkeypatch):
    """Let nobody read which names of jobs are taken, as for two submissions at the same time."""
    denied = ClientError({"Error": {"Code": "AccessDeniedException"}}, "DescribeTrainingJob")
    describe = Mock(side_effect=denied)
    monkeypatch.setattr(session.sagemaker_client, "describe_training_job", describe)


def test_jobs_with_one_explicit_name_share_the_object_and_no_secret(
    estimator, objects, undescribed
):
    """A name is free in another region."""
    estimator().fit(wait=False, job_name="nightly")
    (first,) = (each["Body"].read() for key, each in objects("nightly/").items() if SUFFIX in key)
    estimator().fit(wait=False, job_name="nightly")
    (kept,) = (each["Body"].read() for key, each in objects("nightly/").items() if SUFFIX in key)
    arns = [
        f"arn:aws:sagemaker:{place}:training-job/nightly"
        for place in ("us-west-2:123456789012", "eu-west-1:123456789012", "us-west-2:210987654321")
    ]

    assert first == kept
    assert 3 == len({secret_of_job(kept, arn) for arn in arns})


def test_the_output_key_encrypts_it_like_the_code(estimator, session, objects):
    key = "arn:aws:kms:us-west-2:123456789012:key/11111111-2222-3333-4444-555555555555"
    estimator(output_kms_key=key).fit(wait=False)
    found = objects(f"{session.requests[0]['TrainingJobName']}/source/")

    assert [key, key] == [each["SSEKMSKeyId"] for each in found.values()]


def test_a_channel_with_the_code_has_it_too(estimator, session, objects):
    """A job without network reads the code as the channel `code`: all keys with its prefix."""
    estimator(enable_network_isolation=True).fit(wait=False)
    (channel,) = session.requests[0]["InputDataConfig"]
    prefix = channel["DataSource"]["S3DataSource"]["S3Uri"].removeprefix("s3://bucket/")

    assert [prefix, f"{prefix}.secret"] == [key for key in objects("") if key.startswith(prefix)]


@pytest.mark.parametrize(
    "changes",
    [
        {
            "distribution": None,
            "image_uri": None,
            "framework_version": "2.3",
            "py_version": "py311",
        },
        {"source_dir": "s3://bucket/theirs/code.tar.gz"},
    ],
    ids=["an image of AWS", "the user's own upload"],
)
def test_nobody_reads_it_or_nothing_was_uploaded(estimator, session, objects, changes):
    estimator(**changes).fit(wait=False)
    name = session.requests[0]["TrainingJobName"]

    assert not [key for key in (*objects(name), *objects("theirs")) if key.endswith(".secret")]


def test_an_unchanged_step_of_a_pipeline_stays_the_same(estimator, pipeline, session, objects):
    """The secret is kept; and with another one the request is the same, too."""
    s3 = session.boto_session.client("s3")
    built = estimator(sagemaker_session=pipeline)

    def definition():
        steps = [TrainingStep("train", step_args=built.fit())]
        return Pipeline("unchanged", steps=steps, sagemaker_session=pipeline).definition()

    def secret():
        (found,) = [each for key, each in objects("unchanged/").items() if key.endswith(".secret")]
        return found["Body"].read()

    first, of_first = definition(), secret()
    again, kept = definition(), secret()
    (key,) = [key for key in objects("unchanged/") if key.endswith(".secret")]
    s3.delete_object(Bucket="bucket", Key=key)
    another, renewed = definition(), secret()

    assert of_first == kept != renewed
    assert first == again == another


def test_the_jobs_of_a_tuner_share_one(estimator, session, objects):
    before = set(objects(".secret"))
    ranges = {"lr": ContinuousParameter(0.1, 1.0)}
    metrics = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    tuner = HyperparameterTuner(estimator(), "loss", ranges, metrics, max_jobs=2)
    tuner.fit(wait=False)
    (uri,) = {
        json.loads(definition["StaticHyperParameters"]["sagemaker_submit_directory"])
        for definition in [tuner.describe()["TrainingJobDefinition"]]
    }

    assert {f"{uri.removeprefix('s3://bucket/')}.secret"} == set(objects(".secret")) - before


@pytest.mark.parametrize("is_tuned", [False, True])
def test_two_submissions_of_one_name_keep_their_code_apart(
    estimator, session, objects, script, undescribed, is_tuned
):
    """Whichever job starts runs the code that was submitted with it, and has a secret beside it."""
    name, texts = f"twice-{is_tuned}".lower(), ["print('ours')", "print('theirs')"]
    ranges = {"lr": ContinuousParameter(0.1, 1.0)}
    metrics = [{"Name": "loss", "Regex": "loss=([0-9.]+)"}]
    for text in texts:
        built = estimator(source_dir=script(text))
        fits = HyperparameterTuner(built, "loss", ranges, metrics) if is_tuned else built
        with suppress(ClientError):  # SageMaker refuses the second one
            fits.fit(wait=False, job_name=name)
    found = objects(f"{name}/source/")
    codes = [each for key, each in found.items() if key.endswith(".tar.gz")]

    assert sorted(texts) == sorted(script_in(each["Body"].read()) for each in codes)
    assert 2 == len([key for key in found if key.removesuffix(SUFFIX) != key])


def script_in(tarball):
    with tarfile.open(fileobj=io.BytesIO(tarball)) as code:
        return code.extractfile("train.py").read().decode()


def test_a_second_job_of_a_name_leaves_the_code_of_the_first(estimator, session, objects, script):
    """The SDK alone uploads the code first, to the key of the first job's code."""
    estimator().fit(wait=False, job_name="once")
    before = {key: each["ETag"] for key, each in objects("once/source/").items()}
    with pytest.raises(OptionError) as caught:
        estimator(source_dir=script("print('another')")).fit(wait=False, job_name="once")

    assert (("job_name",), "conflict") == (caught.value.about, caught.value.kind)
    assert before == {key: each["ETag"] for key, each in objects("once/source/").items()}
    assert 1 == len(session.requests)
    assert len(before) == 2
