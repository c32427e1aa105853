# SPDX-License-Identifier: Apache-2.0
"""Copy of the user's code to a host: without the job's own files, and without circular links."""

import os
import socket

import pytest

from sagemaker_dist.errors import SetupError
from sagemaker_dist.runners.local.code_copy import Code, own_places


def files(folder):
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Create a home directory with code, endless data, and the jobs' folders."""
    home = tmp_path / "home"
    for name in ("train.py", "pkg/a.py", ".git/HEAD", "pkg/__pycache__/a.pyc", "model/old"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (home / "alias.py").symlink_to("train.py")
    (home / "lib").symlink_to("pkg")
    (home / "dangling").symlink_to("nowhere")
    (home / "self").symlink_to("self")
    (home / "pkg" / "up").symlink_to("..")
    os.mkfifo(home / "fifo")
    monkeypatch.chdir(home)  # the name of a socket has little room
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    return home


def test_what_the_job_writes_is_not_copied(home):
    """The job's folder may be inside source_dir; it is not copied into itself."""
    job = home / ".sagemaker-dist/jobs/job"
    code = job / "hosts/algo-1/code"
    code.mkdir(parents=True)
    own = own_places(job, str(home / "model"), "job")
    Code(folder=home, own=own).place(code)

    assert {"train.py", "alias.py", "pkg/a.py", "lib/a.py"} == files(code)
    assert not (code / "alias.py").is_symlink()


def test_other_jobs_beside_the_code_are_not_copied(home):
    """source_dir may be the directory of all jobs; their folders are not copied."""
    for name in ("first", "job"):
        (home / name).mkdir()
        (home / name / "job.json").touch()
    code = home / "job/hosts/algo-1/code"
    code.mkdir(parents=True)
    Code(folder=home, own=own_places(home / "job", None, "job")).place(code)

    assert {"train.py", "alias.py", "pkg/a.py", "lib/a.py", "model/old"} == files(code)


def test_links_that_lead_to_each_other_end(tmp_path):
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / "src" / one).mkdir(parents=True)
        (tmp_path / "src" / one / "to").symlink_to(f"../{other}")
        (tmp_path / "src" / one / "file").touch()
    Code(folder=tmp_path / "src").place(tmp_path / "code")

    assert {"a/file", "a/to/file", "b/file", "b/to/file"} == files(tmp_path / "code")


def test_one_file_and_its_dependencies(home, tmp_path):
    code = Code(folder=home, only="train.py", dependencies=(home / "pkg", home / "alias.py"))
    code.place(tmp_path / "code")

    assert {"train.py", "pkg/a.py", "alias.py"} <= files(tmp_path / "code")
    assert not (tmp_path / "code" / "model").exists()


def test_missing_code_is_named(tmp_path):
    with pytest.raises(SetupError) as caught:
        Code(folder=tmp_path, only="train.py").place(tmp_path / "code")

    assert "missing_file" == caught.value.kind
    assert str(tmp_path / "train.py") in caught.value.what
