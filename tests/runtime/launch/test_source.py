# SPDX-License-Identifier: Apache-2.0
"""The user's code is copied from a directory, a tarball or S3, or an error has the reason."""

import io
import os
import sys
import tarfile
import threading

import boto3
import pytest
from error_fields import fields_of
from moto.server import ThreadedMotoServer

from sagemaker_dist.errors import LaunchError
from smdist.code_source import Source
from smdist.launch import user_code
from smdist.launch.user_code import fetch, install_requirements

PLAIN = Source(program="train.py")


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "my source"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('hi')")
    (folder / "pkg/sub.py").write_text("")
    return folder


@pytest.fixture
def tarball(tmp_path, folder):
    path = tmp_path / "source.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, arcname=".")
    return path


@pytest.mark.parametrize("uri", ["{}", "file://{}"])
def test_directory_is_copied(tmp_path, folder, uri):
    source = Source(program="train.py", submit_directory=uri.format(folder))
    script = fetch(source, tmp_path / "code")

    assert tmp_path / "code/train.py" == script
    assert (tmp_path / "code/pkg/sub.py").exists()


def test_quoted_uri_is_a_path(tmp_path, folder):
    source = Source(program="train.py", submit_directory=folder.as_uri())

    assert fetch(source, tmp_path / "code").exists()


def test_tarball_is_unpacked(tmp_path, tarball):
    source = Source(program="pkg/sub.py", submit_directory=str(tarball))

    assert tmp_path / "code/pkg/sub.py" == fetch(source, tmp_path / "code")


@pytest.mark.parametrize("where", [None, "itself"])
def test_code_that_is_there_is_used(folder, where):
    """The image brought it, or the submit directory is the code directory."""
    source = Source(program="train.py", submit_directory=str(folder) if where else "")

    assert folder / "train.py" == fetch(source, folder)


@pytest.fixture(scope="module")
def s3():
    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield f"http://{host}:{port}"
    server.stop()


def test_s3_is_downloaded(tmp_path, tarball, s3):
    client = boto3.client("s3", region_name="us-east-1", endpoint_url=s3)
    client.create_bucket(Bucket="code")
    client.upload_file(str(tarball), "code", "job/source/sourcedir.tar.gz")
    uri = "s3://code/job/source/sourcedir.tar.gz"
    source = Source(program="train.py", submit_directory=uri, region="us-east-1", endpoint=s3)

    assert "print('hi')" == fetch(source, tmp_path / "code").read_text()


def test_s3_without_the_object_is_explained(tmp_path, s3):
    uri = "s3://nowhere/x.tar.gz"
    source = Source(program="train.py", submit_directory=uri, region="us-east-1", endpoint=s3)

    with pytest.raises(LaunchError) as caught:
        fetch(source, tmp_path / "code")

    assert [("sagemaker_submit_directory", "not_downloaded")] == fields_of(caught.value)
    assert uri in caught.value.what


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil.py"])
def test_tarball_cannot_leave_its_directory(tmp_path, name):
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo(name)
        info.size = 1
        archive.addfile(info, io.BytesIO(b"x"))
    source = Source(program="evil.py", submit_directory=str(path))

    with pytest.raises(LaunchError):
        fetch(source, tmp_path / "inner/code")
    assert not (tmp_path / "inner/evil.py").exists()


def test_truncated_tarball_is_explained(tmp_path, tarball):
    tarball.write_bytes(tarball.read_bytes()[:60])

    with pytest.raises(LaunchError) as caught:
        fetch(Source(program="train.py", submit_directory=str(tarball)), tmp_path / "code")

    assert [("sagemaker_submit_directory", "corrupt")] == fields_of(caught.value)


@pytest.mark.parametrize(
    ("program", "kind", "named"),
    [("", "missing", "entry_point"), ("run.sh", "unsupported", ".py"),
     ("tran.py", "missing_file", "'train.py'")],
)  # fmt: skip
def test_script_must_be_there(tmp_path, folder, program, kind, named):
    with pytest.raises(LaunchError) as caught:
        fetch(Source(program=program, submit_directory=str(folder)), tmp_path / "code")

    assert [("sagemaker_program", kind)] == fields_of(caught.value)
    assert named in caught.value.hint


def test_missing_directory_is_named(tmp_path):
    with pytest.raises(LaunchError) as caught:
        fetch(Source(program="a.py", submit_directory="/not/there"), tmp_path / "code")

    assert [("sagemaker_submit_directory", "missing_file")] == fields_of(caught.value)
    assert (
        "the code at /not/there cannot be copied to this host: there is no such directory or"
        " tarball. Check that the hyperparameter sagemaker_submit_directory names the code, and"
        " that the role is allowed to read it."
    ) == str(caught.value)


def test_requirements_are_optional(tmp_path):
    install_requirements(PLAIN, tmp_path, os.environ)


def test_failed_installation_is_an_error(tmp_path, capfd):
    """pip's own words are shown."""
    (tmp_path / "requirements.txt").write_text("./not-there\n")

    with pytest.raises(LaunchError) as caught:
        install_requirements(PLAIN, tmp_path, os.environ)

    assert [("requirements", "not_installed")] == fields_of(caught.value)
    assert "not-there" in capfd.readouterr().err


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """Replace pip by a program; return where it would install packages, and a log of its runs."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (tmp_path / "requirements.txt").write_text("")
    log = tmp_path / "log"
    program = tmp_path / "pip.py"
    program.write_text(
        "import pathlib, time\n"
        f"log = pathlib.Path({str(log)!r})\n"
        "with log.open('a') as file: file.write('begin ')\n"
        "time.sleep(0.3)\n"
        "with log.open('a') as file: file.write('end ')\n"
    )
    monkeypatch.setattr(user_code, "_install_command", lambda *_: [sys.executable, str(program)])
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(packages))
    return packages, log


def test_one_pip_runs_at_a_time(pip, tmp_path):
    """Hosts that install into the same Python wait for each other."""
    packages, log = pip
    hosts = [
        threading.Thread(target=install_requirements, args=(PLAIN, tmp_path, {})) for _ in range(3)
    ]
    for host in hosts:
        host.start()
    for host in hosts:
        host.join()

    assert 3 * ["begin", "end"] == log.read_text().split()
    assert 0o600 == (packages / ".smdist-pip.lock").stat().st_mode & 0o777


def test_the_lock_of_pip_is_in_no_directory_for_all_users(pip, tmp_path, monkeypatch):
    """A link that another user has put into /tmp is not followed."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    victim.write_text("precious")
    (shared / f"smdist-pip-{os.getuid()}.lock").symlink_to(victim)
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    install_requirements(PLAIN, tmp_path, {})

    assert "precious" == victim.read_text()


def test_a_link_in_place_of_the_lock_is_not_followed(pip, tmp_path):
    """Then the lock is in HOME, or in the host's own directory."""
    packages, log = pip
    home, code = tmp_path / "home", tmp_path / "base/code"
    home.mkdir()
    code.mkdir(parents=True)
    (code / "requirements.txt").write_text("")
    (packages / ".smdist-pip.lock").symlink_to(tmp_path / "victim")
    install_requirements(PLAIN, code, {"HOME": str(home)})
    assert (home / ".smdist-pip.lock").exists()
    install_requirements(PLAIN, code, {})

    assert (code.parent / ".smdist-pip.lock").exists()
    assert not (tmp_path / "victim").exists()
    assert 2 * ["begin", "end"] == log.read_text().split()
