# SPDX-License-Identifier: Apache-2.0
"""TrainingJob: the same requests as an estimator's, without SageMaker's SDK."""

import io
import json
import os
import re
import tarfile

import boto3
import pytest
from error_fields import fields_of, fields_raised
from moto import mock_aws

from sagemaker_dist import (
    DataParallel,
    FileSystemInput,
    InstanceGroup,
    ModelParallel,
    OnInstanceGroup,
    OptionError,
    OptionErrors,
    S3Input,
    SetupError,
    TorchDistributed,
    TrainingJob,
    metric_definitions,
)
from sagemaker_dist.contract import KEY, parse, parse_framework
from sagemaker_dist.runners import RecordingRunner

pytestmark = pytest.mark.timeout(60)

IMAGE = "123456789012.dkr.ecr.us-west-2.amazonaws.com/sagemaker-dist:0.1.0-torch"
ROLE = "arn:aws:iam::123456789012:role/training"


@pytest.fixture
def amazon():
    """Return a boto3 session of moto, with a bucket."""
    with mock_aws():
        session = boto3.Session("testing", "testing", region_name="us-west-2")
        place = {"LocationConstraint": "us-west-2"}
        session.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration=place)
        yield session


@pytest.fixture
def job(amazon, tmp_path):
    """Return a function that builds a valid job for SageMaker, with the test's changes."""
    source = tmp_path / "src"
    source.mkdir()
    (source / "train.py").write_text("print('hi')\n")
    (source / "lib").mkdir()
    (source / "lib/net.py").write_text("")

    def build(**changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": source,
            "role": ROLE,
            "instance_type": "ml.c5.9xlarge",
            "instance_count": 2,
            "image_uri": IMAGE,
            "output_path": "s3://bucket/out",
            "session": amazon,
            "distribution": DataParallel(),
            "job_name": "job",
        }
        return TrainingJob(**{**arguments, **changes})

    return build


CODE = re.compile(r"out/job/source/[0-9a-f]{32}/sourcedir\.tar\.gz")


def keys_in(amazon):
    """Return the keys of all objects in the bucket."""
    objects = amazon.client("s3").list_objects_v2(Bucket="bucket").get("Contents", [])
    return [each["Key"] for each in objects]


def code_of(request):
    """Return the key of the code that a request names."""
    place = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])
    return place.removeprefix("s3://bucket/")


def script_in(amazon, key):
    """Return the text of train.py in the code at a key."""
    body = amazon.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as code:
        return code.extractfile("train.py").read().decode()


def test_the_whole_request(job):
    sent = job(hyperparameters={"lr": 0.1, "text": "it's\n"}, inputs="s3://bucket/data").request()
    wire = sent["HyperParameters"].pop(KEY)
    code = code_of(sent)

    assert CODE.fullmatch(code)
    assert DataParallel() == parse(wire)
    assert {
        "TrainingJobName": "job",
        "RoleArn": ROLE,
        "AlgorithmSpecification": {
            "TrainingImage": IMAGE,
            "TrainingInputMode": "File",
            "MetricDefinitions": metric_definitions(),
            "EnableSageMakerMetricsTimeSeries": True,
        },
        "HyperParameters": {
            "lr": "0.1",
            "text": '"it\'s\\n"',
            "sagemaker_submit_directory": f'"s3://bucket/{code}"',
            "sagemaker_program": '"train.py"',
            "sagemaker_container_log_level": "20",
            "sagemaker_job_name": '"job"',
            "sagemaker_region": '"us-west-2"',
        },
        "InputDataConfig": [
            {
                "ChannelName": "training",
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix",
                        "S3Uri": "s3://bucket/data",
                        "S3DataDistributionType": "FullyReplicated",
                    }
                },
            }
        ],
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "ResourceConfig": {
            "InstanceType": "ml.c5.9xlarge",
            "InstanceCount": 2,
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "ProfilerConfig": {"DisableProfiler": True},
    } == sent


NETWORK = {"subnets": ["subnet-0123456789abcdef0"], "security_group_ids": ["sg-0123456789abcdef0"]}
GROUPS = [InstanceGroup(instance_group_name=name, instance_type="ml.c5.9xlarge", instance_count=n)
          for name, n in (("train", 2), ("data", 1))]  # fmt: skip
SPOT = {"use_spot_instances": True, "max_wait": 90000, "checkpoint_s3_uri": "s3://bucket/state"}


@pytest.mark.parametrize(
    ("changes", "part", "expected"),
    [
        (NETWORK, "VpcConfig", {"Subnets": NETWORK["subnets"],
                                "SecurityGroupIds": NETWORK["security_group_ids"]}),
        (SPOT, "EnableManagedSpotTraining", True),
        (SPOT, "StoppingCondition",
         {"MaxRuntimeInSeconds": 86400, "MaxWaitTimeInSeconds": 90000}),
        (SPOT, "CheckpointConfig", {"S3Uri": "s3://bucket/state"}),
        ({"max_retry_attempts": 3}, "RetryStrategy", {"MaximumRetryAttempts": 3}),
        ({"tags": {"a": "b"}}, "Tags", [{"Key": "a", "Value": "b"}]),
        ({"enable_network_isolation": True}, "EnableNetworkIsolation", True),
        ({"encrypt_inter_container_traffic": True}, "EnableInterContainerTrafficEncryption", True),
        ({"environment": {"A": "b"}}, "Environment", {"A": "b"}),
        ({"output_kms_key": "key", "disable_output_compression": True}, "OutputDataConfig",
         {"S3OutputPath": "s3://bucket/out", "KmsKeyId": "key", "CompressionType": "NONE"}),
        ({"volume_kms_key": "key", "keep_alive_period_in_seconds": 600}, "ResourceConfig",
         {"InstanceType": "ml.c5.9xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30,
          "VolumeKmsKeyId": "key", "KeepAlivePeriodInSeconds": 600}),
        ({"instance_type": None, "instance_count": None, "instance_groups": GROUPS,
          "distribution": OnInstanceGroup(strategy=TorchDistributed(), group="train")},
         "ResourceConfig",
         {"InstanceGroups": [each.part() for each in GROUPS], "VolumeSizeInGB": 30}),
    ],
)  # fmt: skip
def test_every_option_has_its_place(job, changes, part, expected):
    assert expected == job(**changes).request()[part]


def test_groups_and_flags_are_hyperparameters(job):
    chosen = OnInstanceGroup(strategy=TorchDistributed(), group=GROUPS[0])
    hosts = {"instance_type": None, "instance_count": None, "instance_groups": GROUPS}
    sent = job(distribution=chosen, **hosts).request()["HyperParameters"]

    assert "true" == sent["sagemaker_torch_distributed_enabled"]
    assert ["train"] == json.loads(sent["sagemaker_distribution_instance_groups"])


def test_code_is_a_channel_where_the_job_has_no_network(job):
    sent = job(enable_network_isolation=True, inputs={"a": "s3://bucket/a"}).request()
    (_, code) = sent["InputDataConfig"]

    assert "code" == code["ChannelName"]
    assert CODE.fullmatch(code["DataSource"]["S3DataSource"]["S3Uri"].removeprefix("s3://bucket/"))
    assert "/opt/ml/input/data/code/sourcedir.tar.gz" == json.loads(
        sent["HyperParameters"]["sagemaker_submit_directory"]
    )


def test_inputs_in_all_their_forms(job):
    inputs = {
        "a": S3Input(uri="s3://bucket/a", input_mode="FastFile", distribution="ShardedByS3Key"),
        "b": "fsx://fs-0123456789abcdef0/mount/b",
        "c": FileSystemInput(uri="efs://fs-0123456789abcdef0/c", writable=True),
        "d": {"DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": "s3://bucket/d"}}},
    }
    a, b, c, d = job(inputs=inputs, **NETWORK).request()["InputDataConfig"]

    assert ("FastFile", "ShardedByS3Key") == (
        a["InputMode"],
        a["DataSource"]["S3DataSource"]["S3DataDistributionType"],
    )
    assert {
        "FileSystemId": "fs-0123456789abcdef0",
        "FileSystemType": "FSxLustre",
        "DirectoryPath": "/mount/b",
        "FileSystemAccessMode": "ro",
    } == b["DataSource"]["FileSystemDataSource"]
    assert "rw" == c["DataSource"]["FileSystemDataSource"]["FileSystemAccessMode"]
    assert {"ChannelName": "d", **inputs["d"]} == d


def test_all_faults_come_at_once(job):
    with pytest.raises(OptionErrors) as caught:
        job(
            role=None,
            entry_point="tran.py",
            instance_type="ml.p99.huge",
            distribution={"pytorchxla": {"enabled": True}},
            inputs={"a": 3, "b": "bucket/b"},
            max_wait=5,
            use_spot_instances=True,
            framework="torhc",
        )

    assert [
        ("framework",),
        ("role",),
        ("inputs", "a"),
        ("instance_type",),
        ("distribution", "pytorchxla"),
        ("max_wait",),
        ("entry_point",),
        ("inputs", "b", "uri"),
    ] == [fault.about for fault in caught.value.faults]


def test_submitting_uploads_the_code_once_and_again(job, amazon):
    """Equal files give equal bytes in the uploaded tarball; the secret is kept."""
    runner, s3 = RecordingRunner(), amazon.client("s3")
    names = [job(runner=runner).submit()]
    key, beside = sorted(keys_in(amazon))
    secret = s3.get_object(Bucket="bucket", Key=beside)["Body"].read()
    names += [job(runner=RecordingRunner()).submit()]
    body = s3.get_object(Bucket="bucket", Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as code:
        members = sorted(code.getnames())

    assert ["job", "job"] == names
    assert CODE.fullmatch(key)
    assert f"{key}.secret" == beside
    assert [key, beside] == sorted(keys_in(amazon))
    assert ["lib", "lib/net.py", "train.py"] == members
    assert 64 == len(secret)
    assert secret == s3.get_object(Bucket="bucket", Key=beside)["Body"].read()
    assert secret.decode() not in repr(runner.requests)


def test_no_secret_is_uploaded_for_a_job_without_ranks(job, amazon):
    job(runner=RecordingRunner(), distribution=None).submit()
    (key,) = keys_in(amazon)

    assert CODE.fullmatch(key)


class Overtaken(RecordingRunner):
    """Runner by which another submission uploads its code just before this one's job starts."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def start(self, request, *, attended=False):
        self.other()
        return super().start(request, attended=attended)


def test_two_submissions_of_one_name_keep_their_code_apart(job, amazon, tmp_path):
    """Whichever job starts runs the code that was submitted with it."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "train.py").write_text("print('theirs')\n")
    second = RecordingRunner()
    first = Overtaken(job(runner=second, source_dir=theirs).submit)
    job(runner=first).submit()
    texts = [script_in(amazon, code_of(runner.requests[0])) for runner in (first, second)]

    assert ["print('hi')\n", "print('theirs')\n"] == texts


def test_changed_code_is_uploaded_as_it_is_at_the_submission(job, amazon, tmp_path):
    """A request that was looked at before is not what is sent."""
    runner = RecordingRunner()
    built = job(runner=runner)
    before = built.request()
    (tmp_path / "src/train.py").write_text("print('changed')\n")
    built.submit()
    (sent,) = runner.requests

    assert code_of(before) != code_of(sent)
    assert "print('changed')\n" == script_in(amazon, code_of(sent))


def test_a_job_runs_to_its_end_on_sagemaker(job, amazon, capsys):
    """A job runs to its end on moto, which completes it at once."""
    built = job()
    built.submit()
    ended = built.wait()

    assert "Completed" == ended["TrainingJobStatus"] == built.describe()["TrainingJobStatus"]
    assert "Completed" in capsys.readouterr().out
    assert amazon.client("sagemaker").describe_training_job(TrainingJobName="job")


def test_aws_is_asked_for_what_is_left_open(job, amazon):
    """AWS supplies the bucket, the role's ARN and the image; each refusal has a hint."""
    iam = amazon.client("iam")
    iam.create_role(RoleName="mine", AssumeRolePolicyDocument="{}")
    sent = job(role="mine", output_path=None).request()

    assert "arn:aws:iam::123456789012:role/mine" == sent["RoleArn"]
    assert "s3://sagemaker-us-west-2-123456789012/" == sent["OutputDataConfig"]["S3OutputPath"]
    assert [("role", "not_found")] == refusal(job(role="other").request)
    no_bucket = job(output_path=None, runner=RecordingRunner())
    assert [("", "not_found")] == refusal(no_bucket.submit)
    assert [("repository", "not_found")] == refusal(job(image_uri=None).request)


def refusal(call):
    """Return the fields of the SetupError that a call raises."""
    with pytest.raises(SetupError) as caught:
        call()
    return fields_of(caught.value)


def test_text_of_a_bucket_that_is_not_there(job):
    """The hint is the command that makes the bucket."""
    with pytest.raises(SetupError) as caught:
        job(output_path=None, runner=RecordingRunner()).submit()

    assert str(caught.value) == (
        "there is no bucket 'sagemaker-us-west-2-123456789012': the job's code is uploaded there."
        " Run: aws s3 mb s3://sagemaker-us-west-2-123456789012, or pass output_path or"
        " code_location."
    )


def test_a_name_is_made_once(job):
    built = job(job_name=None, base_job_name="x" * 63)

    assert built.name == built.name == built.request()["TrainingJobName"]
    assert 63 == len(built.name)


def test_a_job_without_a_script_runs_the_images_own_program(job):
    sent = job(entry_point=None, source_dir=None, distribution=None, hyperparameters={"a": "x"})

    assert {"a": "x"} == sent.request()["HyperParameters"]
    assert "MetricDefinitions" not in sent.request()["AlgorithmSpecification"]


@pytest.mark.parametrize("name", ["source_dir", "image_uri"])
def test_a_script_is_needed_where_something_speaks_of_one(job, name):
    changes = {"source_dir": None, name: None if name == "image_uri" else "src"}
    about = "entry_point" if name == "image_uri" else "source_dir"

    assert [(about, "missing")] == fields_raised(lambda: job(entry_point=None, **changes))


def test_warnings_say_how_gradients_travel(job):
    assert [] == job().warnings()
    assert "ml.p4d.24xlarge has 8 GPUs" in job(instance_type="ml.p4d.24xlarge").warnings()[0]


@pytest.mark.parametrize(
    ("changes", "about", "kind"),
    [
        ({"hyperparameters": 5}, "hyperparameters", "type"),
        ({"instance_type": ["x"]}, "instance_type", "type"),
        ({"instance_groups": 5}, "instance_groups", "type"),
        ({"subnets": "subnet-1"}, "subnets", "type"),
        ({"container_log_level": "x"}, "container_log_level", "type"),
        ({"dependencies": ["/no"]}, "dependencies", "missing_file"),
        ({"inputs": S3Input(uri=3)}, "inputs.training.uri", "type"),
        (
            {"enable_network_isolation": True, "inputs": {"code": "s3://bucket/x"}},
            "inputs.code",
            "reserved",
        ),
        ({"use_spot_instances": "no"}, "use_spot_instances", "type"),
        ({"dependencies": [1]}, "dependencies[0]", "type"),
        ({"tags": 5}, "tags", "type"),
        (
            {"source_dir": "s3://bucket/x.tar.gz", "dependencies": ["train.py"]},
            "dependencies",
            "no_effect",
        ),
        ({"entry_point": "../train.py"}, "entry_point", "missing_file"),
        ({"entry_point": "x" * 300 + ".py"}, "entry_point", "missing_file"),
        ({"instance_groups": [{"InstanceGroupName": "a"}]}, "instance_groups[0]", "type"),
        ({"inputs": {"a": {"S3DataSource": {}}}}, "inputs.a", "type"),
        ({"inputs": {"a": {"DataSource": {"S3DataSource": None}}}}, "inputs.a", "type"),
        ({"inputs": {"a": {"DataSource": {}}}}, "inputs.a", "type"),
    ],
)
def test_odd_values_are_named(job, changes, about, kind):
    """The first error of a wrong value is about the wrong option."""
    assert (about, kind) == fields_raised(lambda: job(**changes))[0]


def test_text_of_a_wrong_type(job):
    """The error of a wrong type names the option, its value, its type and the right one."""
    with pytest.raises(OptionError) as caught:
        job(hyperparameters=5)

    assert "hyperparameters is 5: it is of type int. Pass a dict." == str(caught.value)


def test_what_is_packed_is_what_a_job_of_this_machine_sees(job, amazon, tmp_path):
    """Links are followed; special files and circular links are left out."""
    source, other = tmp_path / "src", tmp_path / "other"
    other.mkdir()
    (other / "data.py").write_text("x = 1")
    (source / "linked").symlink_to(other)
    (source / "link.py").symlink_to(other / "data.py")
    (source / "around").symlink_to(source)
    (source / "gone").symlink_to("nowhere")
    (source / "__pycache__").mkdir()
    os.mkfifo(source / "pipe")
    runner = RecordingRunner()
    job(runner=runner, dependencies=[source / "linked"]).submit()
    key = code_of(runner.requests[0])
    body = amazon.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as code:
        files = {each.name: each.isreg() for each in code if not each.isdir()}

    assert dict.fromkeys(["lib/net.py", "link.py", "linked/data.py", "train.py"], True) == files


def test_a_name_in_use_is_told_before_anything_is_uploaded(job, amazon):
    """A name in use is refused before the code of the other job is overwritten."""
    runner = RecordingRunner()
    first = job(runner=runner)
    assert "job" == first.submit() == first.submit()
    for key in keys_in(amazon):
        amazon.client("s3").delete_object(Bucket="bucket", Key=key)

    assert [("job_name", "conflict")] == fields_raised(job(runner=runner).submit)
    assert 1 == len(runner.requests)
    assert [] == keys_in(amazon)


def test_nothing_is_uploaded_without_a_region(job, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    nowhere = job(session=boto3.Session("testing", "testing"), runner=RecordingRunner())

    assert [("session", "no_region")] == refusal(nowhere.submit)


def test_code_that_cannot_be_read_is_named(job, monkeypatch):
    built = job(runner=RecordingRunner())
    monkeypatch.setattr(tarfile.TarFile, "add", _refuse)

    assert [("", "unreadable_file")] == refusal(built.submit)


def _refuse(*_, **__):
    raise PermissionError(13, "Permission denied", "train.py")


def test_a_job_of_tensorflow_says_so(job):
    """Our distributions are sent as the document, TensorFlow's strategies as SageMaker's flags."""
    sent = (DataParallel(), {"parameter_server": {"enabled": True}})
    jobs = [job(framework="tensorflow", distribution=each) for each in sent]
    ours, theirs = (each.request()["HyperParameters"] for each in jobs)

    assert "tensorflow" == parse_framework(ours[KEY])
    assert "true" == theirs["sagemaker_parameter_server_enabled"]
    split = job(framework="tensorflow", distribution=ModelParallel()).request()
    assert "tensorflow" == parse_framework(split["HyperParameters"][KEY])
