# SPDX-License-Identifier: Apache-2.0
"""A job without SageMaker's SDK asks for what an estimator asks for, and runs to its end."""

import io
import json
import os
import tarfile

import boto3
import pytest
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
    """A session inside moto, with a bucket."""
    with mock_aws():
        session = boto3.Session("testing", "testing", region_name="us-west-2")
        place = {"LocationConstraint": "us-west-2"}
        session.client("s3").create_bucket(Bucket="bucket", CreateBucketConfiguration=place)
        yield session


@pytest.fixture
def job(amazon, tmp_path):
    """Builds a valid job for SageMaker, with what a test changes."""
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


def test_the_whole_request(job):
    asked = job(hyperparameters={"lr": 0.1, "text": "it's\n"}, inputs="s3://bucket/data").request()
    wire = asked["HyperParameters"].pop(KEY)

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
            "sagemaker_submit_directory": '"s3://bucket/out/job/source/sourcedir.tar.gz"',
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
    } == asked


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
    asked = job(distribution=chosen, **hosts).request()["HyperParameters"]

    assert "true" == asked["sagemaker_torch_distributed_enabled"]
    assert ["train"] == json.loads(asked["sagemaker_distribution_instance_groups"])


def test_code_is_a_channel_where_the_job_has_no_network(job):
    asked = job(enable_network_isolation=True, inputs={"a": "s3://bucket/a"}).request()
    (_, code) = asked["InputDataConfig"]

    assert "code" == code["ChannelName"]
    assert (
        "s3://bucket/out/job/source/sourcedir.tar.gz" == code["DataSource"]["S3DataSource"]["S3Uri"]
    )
    assert "/opt/ml/input/data/code/sourcedir.tar.gz" == json.loads(
        asked["HyperParameters"]["sagemaker_submit_directory"]
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
            distribution={"mpi": {"enabled": True}},
            inputs={"a": 3, "b": "bucket/b"},
            max_wait=5,
            use_spot_instances=True,
            framework="torhc",
        )

    starts = [str(fault).partition(":")[0] for fault in caught.value.faults]

    assert [
        "framework is 'torhc'",
        "role is left out",
        "channel 'a' is of type int",
        "instance_type is 'ml.p99.huge'",
        "distribution requests 'mpi'",
        "max_wait is 5 and max_run is 86400",
        "entry_point is 'tran.py'",
        "channel 'b' is 'bucket/b'",
    ] == starts


def test_submitting_uploads_the_code_once_and_again(job, amazon):
    """The same files are the same bytes."""
    names = [job(runner=RecordingRunner()).submit(), job(runner=RecordingRunner()).submit()]
    objects = amazon.client("s3").list_objects_v2(Bucket="bucket")["Contents"]
    body = amazon.client("s3").get_object(Bucket="bucket", Key=objects[0]["Key"])["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as code:
        members = sorted(code.getnames())

    assert ["job", "job"] == names
    assert ["out/job/source/sourcedir.tar.gz"] == [each["Key"] for each in objects]
    assert ["lib", "lib/net.py", "train.py"] == members


def test_a_job_runs_to_its_end_on_sagemaker(job, amazon, capsys):
    """Which moto plays: it completes at once."""
    built = job()
    built.submit()
    ended = built.wait()

    assert "Completed" == ended["TrainingJobStatus"] == built.describe()["TrainingJobStatus"]
    assert "Completed" in capsys.readouterr().out
    assert amazon.client("sagemaker").describe_training_job(TrainingJobName="job")


def test_aws_is_asked_for_what_is_left_open(job, amazon):
    """The bucket of the account, the ARN of the role; each refusal says what to do."""
    iam = amazon.client("iam")
    iam.create_role(RoleName="mine", AssumeRolePolicyDocument="{}")
    asked = job(role="mine", output_path=None).request()

    assert "arn:aws:iam::123456789012:role/mine" == asked["RoleArn"]
    assert "s3://sagemaker-us-west-2-123456789012/" == asked["OutputDataConfig"]["S3OutputPath"]
    with pytest.raises(SetupError, match="there is no IAM role 'other'"):
        job(role="other").request()
    with pytest.raises(SetupError, match="there is no bucket 'sagemaker-us-west-2-123456789012'"):
        job(output_path=None, runner=RecordingRunner()).submit()
    with pytest.raises(SetupError, match="there is no ECR repository 'sagemaker-dist'"):
        job(image_uri=None).request()


def test_a_name_is_made_once(job):
    built = job(job_name=None, base_job_name="x" * 63)

    assert built.name == built.name == built.request()["TrainingJobName"]
    assert 63 == len(built.name)


def test_a_job_without_a_script_runs_the_images_own_program(job):
    asked = job(entry_point=None, source_dir=None, distribution=None, hyperparameters={"a": "x"})

    assert {"a": "x"} == asked.request()["HyperParameters"]
    assert "MetricDefinitions" not in asked.request()["AlgorithmSpecification"]


@pytest.mark.parametrize("name", ["source_dir", "image_uri"])
def test_a_script_is_needed_where_something_speaks_of_one(job, name):
    changes = {"source_dir": None, name: None if name == "image_uri" else "src"}
    with pytest.raises(OptionError, match="entry_point"):
        job(entry_point=None, **changes)


def test_warnings_say_how_gradients_travel(job):
    assert [] == job().warnings()
    assert "ml.p4d.24xlarge has 8 GPUs" in job(instance_type="ml.p4d.24xlarge").warnings()[0]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hyperparameters": 5}, "hyperparameters is 5: its type is int. Pass a dict."),
        ({"instance_type": ["x"]}, "instance_type is ['x']: its type is list. Pass a str."),
        ({"instance_groups": 5}, "instance_groups is 5: its type is int. Pass a list."),
        ({"subnets": "subnet-1"}, "subnets is 'subnet-1': its type is str. Pass a list."),
        ({"container_log_level": "x"}, "container_log_level is 'x': its type is str. Pass an int."),
        (
            {"dependencies": ["/no"]},
            "dependencies has '/no': there is no such file. Correct the path.",
        ),
        (
            {"inputs": S3Input(uri=3)},
            (
                "the uri of input 'training' is 3: it is not a str. Pass a str such as"
                " 's3://bucket/prefix'."
            ),
        ),
        (
            {"enable_network_isolation": True, "inputs": {"code": "s3://bucket/x"}},
            "a channel is named 'code': with enable_network_isolation, the code is sent in this"
            " channel. Rename the channel.",
        ),
        ({"use_spot_instances": "no"}, "use_spot_instances is 'no': its type is str. Pass True or"
         " False."),
        ({"dependencies": [1]}, "dependencies[0] is 1: it is not a path. Pass a str or Path."),
        ({"tags": 5}, "tags is 5: its type is int. Pass a dict or list."),
        (
            {"source_dir": "s3://bucket/x.tar.gz", "dependencies": ["train.py"]},
            None,
        ),
        ({"entry_point": "../train.py"}, None),
        ({"entry_point": "x" * 300 + ".py"}, None),
        ({"instance_groups": [{"InstanceGroupName": "a"}]}, None),
        ({"inputs": {"a": {"S3DataSource": {}}}}, None),
        ({"inputs": {"a": {"DataSource": {"S3DataSource": None}}}}, None),
        (
            {"inputs": {"a": {"DataSource": {}}}},
            "channel 'a' is of type dict: it does not name a place. Pass 's3://…', a Path, an"
            " S3Input or a FileSystemInput.",
        ),
    ],
)  # fmt: skip
def test_odd_values_are_told(job, changes, fault):
    with pytest.raises(OptionError) as caught:
        job(**changes)

    assert fault in (None, str(caught.value))


def test_what_is_packed_is_what_a_job_of_this_machine_sees(job, amazon, tmp_path):
    """Links are followed; what is no file stays out, and so does a link around itself."""
    source, other = tmp_path / "src", tmp_path / "other"
    other.mkdir()
    (other / "data.py").write_text("x = 1")
    (source / "linked").symlink_to(other)
    (source / "link.py").symlink_to(other / "data.py")
    (source / "around").symlink_to(source)
    (source / "gone").symlink_to("nowhere")
    (source / "__pycache__").mkdir()
    os.mkfifo(source / "pipe")
    job(runner=RecordingRunner(), dependencies=[source / "linked"]).submit()
    key = "out/job/source/sourcedir.tar.gz"
    body = amazon.client("s3").get_object(Bucket="bucket", Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(body)) as code:
        files = {each.name: each.isreg() for each in code if not each.isdir()}

    assert dict.fromkeys(["lib/net.py", "link.py", "linked/data.py", "train.py"], True) == files


def test_a_name_in_use_is_told_before_anything_is_uploaded(job, amazon):
    """Code of another job is not overwritten."""
    runner = RecordingRunner()
    first = job(runner=runner)
    assert "job" == first.submit() == first.submit()
    amazon.client("s3").delete_object(Bucket="bucket", Key="out/job/source/sourcedir.tar.gz")
    with pytest.raises(OptionError, match="a job of this name exists"):
        job(runner=runner).submit()

    assert 1 == len(runner.requests)
    assert "Contents" not in amazon.client("s3").list_objects_v2(Bucket="bucket")


def test_nothing_is_uploaded_without_a_region(job, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    nowhere = boto3.Session("testing", "testing")
    with pytest.raises(SetupError, match="no AWS region is set: the job needs a region"):
        job(session=nowhere, runner=RecordingRunner()).submit()


def test_code_that_cannot_be_read_is_named(job, monkeypatch):
    built = job(runner=RecordingRunner())
    monkeypatch.setattr(tarfile.TarFile, "add", _refuse)
    with pytest.raises(SetupError, match="the code of the job cannot be packed"):
        built.submit()


def _refuse(*_, **__):
    raise PermissionError(13, "Permission denied", "train.py")


def test_a_job_of_tensorflow_says_so(job):
    """Ranks of ours by the document, TensorFlow's strategies by SageMaker's flags."""
    asked = (DataParallel(), {"parameter_server": {"enabled": True}})
    jobs = [job(framework="tensorflow", distribution=each) for each in asked]
    ours, theirs = (each.request()["HyperParameters"] for each in jobs)

    assert "tensorflow" == parse_framework(ours[KEY])
    assert "true" == theirs["sagemaker_parameter_server_enabled"]
    with pytest.raises(OptionError, match="splits no models of TensorFlow"):
        job(framework="tensorflow", distribution=ModelParallel())
