# SPDX-License-Identifier: Apache-2.0
"""Channels as hosts find them, with data in a mock S3 server."""

import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from channels import channel
from local_jobs import log, run, wait_until

from sagemaker_dist.errors import JobError
from sagemaker_dist.planning import plan_local_job
from sagemaker_dist.runners import TERMINAL, LocalRunner
from sagemaker_dist.runners.local.data.channel_layout import lay_out
from sagemaker_dist.runners.local.data.channels import DOWNLOADER, Data, Mount
from sagemaker_dist.runners.local.job_folder import JobFolder

pytestmark = pytest.mark.timeout(120)

LIST = """
    import json
    root = base / "input/data"
    found = {str(p.relative_to(root)): p.read_text() for p in root.glob("*/**/*") if p.is_file()}
    (base / "model" / f"{host}.json").write_text(json.dumps(found))
"""


@pytest.fixture
def silent():
    """Return the URL of a server that accepts requests and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("p/", {"a/x": "1", "y": "2"}),
        ("p", {"a/x": "1", "y": "2", "p2/z": "3"}),
        ("p/y", {"y": "2"}),
        ("p/a", {"x": "1"}),
    ],
)
def test_keys_lie_as_below_their_prefix(seen, put, prefix, names):
    put(**{"p/": "", "p/a/x": "1", "p/y": "2", "p2/z": "3", "q": "4"})
    (found,) = seen(LIST, channel(f"s3://bucket/{prefix}"))

    assert {f"a/{name}": text for name, text in names.items()} == found


def test_data_is_downloaded_once_and_removed(seen, runner, put, s3):
    """The status is Downloading, the log has the size, and the prefix may be a whole bucket."""
    put(x="1", y="22")
    first, second = seen(LIST, channel("s3://bucket"), channel("s3://bucket/y", "b"), hosts=2)
    steps = [step["Status"] for step in runner.describe("job")["SecondaryStatusTransitions"]]

    assert {"a/x": "1", "a/y": "22", "b/y": "22"} == first == second
    assert ["Starting", "Downloading", "Training", "Uploading", "Completed"] == steps
    assert (
        "[sagemaker-dist] downloading channel 'a' (s3://bucket): 2 objects, 3 bytes\n"
        "[sagemaker-dist] downloading channel 'b' (s3://bucket/y): 1 object, 2 bytes\n"
        "[sagemaker-dist] copied 3 of 3 objects, 5 bytes of 5 bytes, in "
    ) in log(runner)
    assert not (runner.root / "job" / "data").exists()


@pytest.mark.parametrize("is_here", [True, False])
def test_shards_go_round(seen, put, tmp_path, is_here):
    """Host i of n gets objects i, i + n, ...; a host may get none."""
    uri = "s3://bucket"
    put(**{"a": "0", "b/c": "1", "d": "2", "e": "3"})
    if is_here:
        (tmp_path / "in" / "b").mkdir(parents=True)
        for name, text in {"a": "0", "b/c": "1", "d": "2", "e": "3"}.items():
            (tmp_path / "in" / name).write_text(text)
        uri = (tmp_path / "in").as_uri()
    few = channel("s3://bucket/a", "few", distribution="ShardedByS3Key")
    first, second, third = seen(LIST, channel(uri, distribution="ShardedByS3Key"), few, hosts=3)

    assert {"a/a": "0", "a/e": "3", "few/a": "0"} == first
    assert {"a/b/c": "1"} == second
    assert {"a/d": "2"} == third


def test_the_configuration_tells_the_mode_of_each_channel(seen, put, data):
    put(x="1")
    text = """
        import json, pathlib
        (base / "model" / f"{host}.json").write_text(
            (base / "input/config/inputdataconfig.json").read_text())
    """
    mode = {"TrainingInputMode": "FastFile", "TrainingImage": "image"}
    own = channel("s3://bucket", mode="Pipe", distribution="ShardedByS3Key", ContentType="a/b")
    plain = {"ChannelName": "b", "DataSource": {"FileDataSource": {"FileUri": data}}}
    (found,) = seen(text, own, plain, AlgorithmSpecification=mode)

    assert {
        "a": {
            "TrainingInputMode": "Pipe",
            "S3DistributionType": "ShardedByS3Key",
            "RecordWrapperType": "None",
            "ContentType": "a/b",
        },
        "b": {
            "TrainingInputMode": "FastFile",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        },
    } == found


def test_a_file_system_is_a_directory_of_this_machine(seen, tmp_path):
    (tmp_path / "fsx" / "set").mkdir(parents=True)
    (tmp_path / "fsx" / "set" / "x").write_text("1")
    source = {
        "FileSystemId": "fs-01234567",
        "FileSystemType": "FSxLustre",
        "FileSystemAccessMode": "rw",
        "DirectoryPath": "/set",
    }
    given = {"ChannelName": "a", "DataSource": {"FileSystemDataSource": source}}
    systems = {"fs-01234567": str(tmp_path / "fsx")}

    assert [{"a/x": "1"}] == seen(LIST, given, LocalFileSystems=systems)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("s3://nowhere/x", "not_found"),
        ("s3://bucket/other", "no_objects"),
        ("s3://bucket/up/", "invalid_key"),
        ("s3://bucket/clash/", "conflict"),
    ],
)
def test_what_cannot_be_downloaded_fails_the_job(runner, request_for, s3, uri, kind):
    for key in ("x", "up/../x", "clash/x", "clash/x/y"):
        s3.put_object(Bucket="bucket", Key=key, Body="1")
    described = run(runner, request_for(InputDataConfig=[channel(uri)]))

    cause = described["RootCause"]
    assert "Failed" == described["TrainingJobStatus"]
    assert ("inputs.a", kind) == (cause["about"], cause["kind"])
    assert f"({uri})" in cause["what"]
    assert not (runner.root / "job" / "data").exists()
    assert "" == Path(runner.logs_at("job"), "supervisor.log").read_text()


def test_all_channels_are_looked_at_before_one_is_downloaded(runner, request_for, s3):
    given = [channel("s3://nowhere"), channel("s3://bucket/x", "b")]
    reason = run(runner, request_for(InputDataConfig=given))["FailureReason"]

    assert (
        "channel 'a' (s3://nowhere) cannot be downloaded: there is no such bucket. Correct the"
        " bucket. channel 'b' (s3://bucket/x) cannot be downloaded: there are no objects below"
        " this prefix. Correct the prefix."
    ) == reason


def test_a_downloader_that_is_killed_fails_the_job(runner, request_for, s3, silent, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", silent)
    name = runner.start(request_for(InputDataConfig=[channel("s3://bucket/x")]))
    own = str(runner.root / name)

    def downloaders():
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if DOWNLOADER in process.cmdline() and own in process.cmdline():
                    yield process

    wait_until(lambda: any(downloaders()))
    for process in downloaders():
        process.kill()
    wait_until(lambda: runner.describe(name)["TrainingJobStatus"] in TERMINAL)

    assert "killed" == runner.describe(name)["RootCause"]["kind"]
    assert "SIGKILL" in runner.describe(name)["FailureReason"]


def test_no_credentials(runner, request_for, s3, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    described = run(runner, request_for(InputDataConfig=[channel("s3://bucket/x")]))

    assert "no_credentials" == described["RootCause"]["kind"]


def test_credentials_of_the_runner_reach_downloads_alone(
    request_for, script, put, tmp_path, monkeypatch
):
    """Neither hosts nor files get them; an empty value removes the driver's variable."""
    put(x="1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the-driver's")
    monkeypatch.setenv("AWS_PROFILE", "missing")
    script("""
        import os
        text = "".join(f"{name}={value}" for name, value in os.environ.items())
        assert "my-secret" not in text and "SAGEMAKER_DIST" not in text
        assert os.environ["AWS_SESSION_TOKEN"] == "the-driver's"
        assert (base / "input/data/a/x").read_text() == "1"
    """)
    environment = {
        "AWS_ACCESS_KEY_ID": "my-key",
        "AWS_SECRET_ACCESS_KEY": "my-secret",
        "AWS_SESSION_TOKEN": "",
        "AWS_PROFILE": "",
    }
    runner = LocalRunner(root=tmp_path / "jobs", environment=environment)
    described = run(runner, request_for(hosts=1, InputDataConfig=[channel("s3://bucket")]))
    files = [path for path in (tmp_path / "jobs").rglob("*") if path.is_file()]

    assert "Completed" == described["TrainingJobStatus"], described.get("FailureReason")
    assert not any(b"my-secret" in path.read_bytes() for path in files)
    assert "my-secret" not in repr(runner)


@pytest.mark.parametrize("now", [True, False])
def test_a_download_can_be_stopped(runner, request_for, s3, silent, monkeypatch, now):
    """A job can be stopped while S3 does not answer."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", silent)
    name = runner.start(request_for(InputDataConfig=[channel("s3://bucket/x")]))
    wait_until(lambda: runner.describe(name)["SecondaryStatus"] == "Downloading")
    runner.stop(name, now=now)
    wait_until(lambda: runner.describe(name)["TrainingJobStatus"] in TERMINAL, 5)

    assert "Stopped" == runner.describe(name)["TrainingJobStatus"]
    assert not (runner.root / "job" / "hosts").exists()


def test_a_download_ends_with_its_driver(runner, request_for, s3, silent, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", silent)
    given = request_for(InputDataConfig=[channel("s3://bucket/x")])
    name = runner.start(given, attended=True)
    wait_until(lambda: runner.describe(name)["SecondaryStatus"] == "Downloading")
    runner.release(name)
    wait_until(lambda: runner.describe(name)["TrainingJobStatus"] in TERMINAL, 5)

    assert "Stopped" == runner.describe(name)["TrainingJobStatus"]


def test_what_a_host_mounts(request_for, tmp_path):
    """Links are resolved; only a file system of mode rw is writable; a pipe has no mount."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    link = (tmp_path / "link").as_uri()
    source = {"FileSystemId": "fs-01234567", "FileSystemType": "EFS", "DirectoryPath": "/"}
    shared = {"FileSystemDataSource": {**source, "FileSystemAccessMode": "rw"}}
    channels = [
        channel(link),
        channel(link, "b", "FastFile"),
        channel(link, "c", "Pipe"),
        channel("s3://bucket", "d"),
        channel("s3://bucket", "e", distribution="ShardedByS3Key"),
        {"ChannelName": "f", "DataSource": shared},
    ]
    systems = {"fs-01234567": str(tmp_path / "link")}
    job = plan_local_job(request_for(InputDataConfig=channels, LocalFileSystems=systems))
    data = Data(JobFolder(tmp_path / "job"), job)

    assert [
        Mount(source=tmp_path / "real", name="a"),
        Mount(source=tmp_path / "real", name="b"),
        Mount(source=tmp_path / "job/data/d", name="d"),
        Mount(source=tmp_path / "job/data/e/algo-2", name="e"),
        Mount(source=tmp_path / "real", name="f", writable=True),
    ] == data.mounts(job.hosts[1])


@pytest.mark.parametrize("key", ["p/../x", "p/a/../../x", "p/..", "p/x\0"])
def test_no_key_leaves_the_directory(key):
    with pytest.raises(JobError) as caught:
        lay_out("channel 'a'", "p/", [(key, 1)])

    assert "invalid_key" == caught.value.kind
    assert repr(key) in caught.value.why
