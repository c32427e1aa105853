# SPDX-License-Identifier: Apache-2.0
"""Channels that no job of this machine reads are refused, all at once, in the job's own words."""

import pytest
from error_fields import fields_of, fields_raised
from sagemaker.inputs import FileSystemInput, ShuffleConfig, TrainingInput
from sagemaker.local.local_session import file_input
from sagemaker.workflow.parameters import ParameterString

from sagemaker_dist.estimators import estimator_facts
from sagemaker_dist.planning import Channel, channel_faults, plan_local_job
from sagemaker_dist.planning.channel_checks import FileSystem, parse_channel

URI = "s3://bucket/data"


def faults(*inputs, here="local_process", **how):
    """Fields of what is wrong with inputs named a, b, ..."""
    channels = estimator_facts.channels(dict(zip("abc", inputs, strict=False)), **how)
    return fields_of(channel_faults(channels, on_this_machine=True, instance_type=here))


def request(*parts, mode="File", **more):
    return {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingInputMode": mode},
        "InputDataConfig": list(parts),
        "ResourceConfig": {"InstanceType": "local", "InstanceCount": 1},
        "OutputDataConfig": {"S3OutputPath": ""},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        **more,
    }


def part(given, name="a"):
    return {**given.config, "ChannelName": name}


@pytest.mark.parametrize(
    "given",
    [
        URI,
        TrainingInput(URI),
        TrainingInput(URI, distribution="ShardedByS3Key", content_type="text/csv"),
        TrainingInput(URI, input_mode="FastFile", compression="None", record_wrapping="None"),
        TrainingInput(URI, input_mode="Pipe", compression="Gzip", shuffle_config=ShuffleConfig(1)),
        TrainingInput(ParameterString("Uri"), input_mode=ParameterString("Mode")),
        ParameterString("Uri"),
        file_input("file:///tmp"),
    ],
)
def test_what_is_read(given):
    assert [] == faults(given)


@pytest.mark.parametrize(
    ("given", "about", "kind"),
    [
        (TrainingInput(URI, input_mode="Stream"), "input_mode", "unknown"),
        (TrainingInput(URI, distribution="shardedbys3"), "distribution", "unknown"),
        (TrainingInput(URI, s3_data_type="ManifestFile"), "s3_data_type", "unsupported"),
        (
            TrainingInput(URI, input_mode="Pipe", record_wrapping="RecordIO"),
            "record_wrapping",
            "unsupported",
        ),
        (TrainingInput(URI, compression="Gzip"), "compression", "conflict"),
        (TrainingInput(URI, shuffle_config=ShuffleConfig(1)), "shuffle_config", "conflict"),
        (TrainingInput(URI, attribute_names=["label"]), "attribute_names", "no_effect"),
        (TrainingInput(URI, instance_groups=["group"]), "instance_groups", "no_effect"),
        ("s3:///x", "uri", "incomplete"),
        ("gs://b/x", "uri", "unsupported"),
        (3, "", "unsupported"),
        (FileSystemInput("fs-01234567", "EFS", "/set"), "", "missing"),
    ],
)
def test_what_is_refused(given, about, kind):
    assert [(f"inputs.a.{about}".rstrip("."), kind)] == faults(given, here="local")


def test_text_of_a_channel_that_is_refused():
    channel = Channel(name="a", file_system=FileSystem(id="fs-01234567", directory="/set"))
    (fault,) = channel_faults([channel], on_this_machine=True, instance_type="local")

    assert str(fault) == (
        "channel 'a' reads '/set' of file system 'fs-01234567': local needs the directory of this"
        " machine where the file system is mounted. Pass"
        " sagemaker_session=LocalSession(file_systems={'fs-01234567': '/its/directory'}), or the"
        " directory as file://."
    )


def test_all_faults_of_a_request_come_at_once():
    wrong = TrainingInput("s3://", input_mode="Stream", s3_data_type="Foo", compression="Gzip")

    assert 5 == len(faults(wrong, FileSystemInput("fs-01234567", "EFS", "/set")))


def test_a_file_system_lies_where_the_user_says(tmp_path):
    (tmp_path / "set").mkdir()
    given = FileSystemInput("fs-01234567", "FSxLustre", "/set", "rw")
    known = {"fs-01234567": str(tmp_path)}
    (channel,) = plan_local_job(request(part(given), LocalFileSystems=known)).channels

    assert [] == faults(given, file_systems=known)
    assert (str(tmp_path / "set"), True) == (channel.path, channel.writable)
    assert not channel.is_fetched


@pytest.mark.parametrize(
    ("directory", "here", "mode", "expected"),
    [
        ("/none", "/tmp", "File", ("inputs.a", "missing_file")),
        ("/../etc", "/tmp", "File", ("inputs.a", "outside")),
        ("/", "relative", "File", ("inputs.a", "relative")),
        ("/", "/tmp", "Pipe", ("inputs.a.input_mode", "unsupported")),
    ],
)
def test_a_file_system_that_cannot_be_read(directory, here, mode, expected):
    given = FileSystemInput("fs-01234567", "EFS", directory)

    assert [expected] == faults(given, file_systems={"fs-01234567": here}, input_mode=mode)


def test_the_mode_of_a_channel_wins():
    parts = part(TrainingInput(URI, input_mode="File")), part(TrainingInput(URI), "b")
    job = plan_local_job(request(*parts, mode="Pipe"))

    assert [False, True] == [channel.is_pipe for channel in job.channels]
    assert "File" == job.input_data_config()["a"]["TrainingInputMode"]


def test_the_mode_of_the_job_decides_what_a_channel_may_have():
    given = TrainingInput(URI, compression="Gzip")

    assert [] == faults(given, input_mode="Pipe")
    assert 1 == len(faults(given, input_mode="File"))


def test_no_channel_has_the_name_of_a_pipe():
    pipe, plain = Channel(name="a", uri=URI, mode="Pipe"), Channel(name="a_0", uri=URI)

    assert [("inputs.a_0", "conflict")] == fields_of(
        channel_faults([pipe, plain], on_this_machine=True)
    )


def test_a_request_is_checked_without_an_estimator():
    """Whoever calls a runner is told before the job starts."""
    wrong = TrainingInput(URI, input_mode="Stream", record_wrapping="RecordIO")

    assert [
        ("inputs.a.input_mode", "unknown"),
        ("inputs.a.record_wrapping", "unsupported"),
    ] == fields_raised(lambda: plan_local_job(request(part(wrong))))


def test_facts_of_a_channel():
    given = TrainingInput(
        URI, "ShardedByS3Key", "Gzip", input_mode="Pipe", shuffle_config=ShuffleConfig(1)
    )
    expected = Channel(
        name="a",
        uri=URI,
        mode="Pipe",
        distribution="ShardedByS3Key",
        data_type="S3Prefix",
        compression="Gzip",
        is_shuffled=True,
    )

    assert (expected,) == estimator_facts.channels({"a": given}, input_mode="File")


def test_a_file_system_without_a_place_has_no_directory():
    source = {"FileSystemId": "fs-01234567", "DirectoryPath": "/x"}
    channel = parse_channel("a", {"DataSource": {"FileSystemDataSource": source}})

    assert FileSystem(id="fs-01234567", directory="/x") == channel.file_system
    assert channel.directory is None
