# SPDX-License-Identifier: Apache-2.0
"""Trees of hosts with links, FIFOs and endless files: none of them is followed or waited for."""

import errno
import json
import os
import socket
import subprocess
import tarfile
import time

import pytest
from channels import channel
from local_jobs import log, run

from sagemaker_dist.errors import JobError
from sagemaker_dist.runners.local.artifacts import Cancelled, _copy, _pack, merge
from sagemaker_dist.runners.local.data.pipes import Pipe, Stream
from sagemaker_dist.runners.local.opt_ml_tree import HostTree
from sagemaker_dist.runners.local.tree_reader import MAX_DEPTH, entries_below, open_file

pytestmark = pytest.mark.timeout(120)

SECRET = "a secret of the user"


@pytest.fixture
def own(tmp_path):
    """Return a directory of the user with one file, which no job may read or write."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "file").write_text(SECRET)
    (folder / "file").chmod(0o600)
    return folder


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "algo-1"
    for part in ("model", "output/data", "input/data"):
        (root / part).mkdir(parents=True)
    return HostTree(root)


@pytest.fixture
def pipe(tree, tmp_path):
    """Return the pipe of a channel before its thread starts; stop it at the end of the test."""
    (tmp_path / "data").write_text("data of the channel")
    pipe = Pipe(tree.data, "t", Stream(root=tmp_path / "data"))
    pipe.make(0)
    yield pipe
    pipe.stop()


def wait_for_fault(pipe):
    deadline = time.monotonic() + 10
    while not pipe.fault:
        assert time.monotonic() < deadline, "the pipe reports nothing"
        time.sleep(0.01)


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_link_in_place_of_a_fifo_is_not_written_to(pipe, tree, own, epoch):
    """The data of a channel does not reach a file that a host has linked, nor does its mode."""
    place = tree.data / f"t_{epoch}"
    place.unlink(missing_ok=True)
    place.symlink_to(own / "file")
    pipe.start()
    if epoch:
        (tree.data / "t_0").read_bytes()
    wait_for_fault(pipe)

    assert SECRET == (own / "file").read_text()
    assert 0o600 == (own / "file").stat().st_mode & 0o777
    assert f"epoch {epoch}" in pipe.fault


def test_a_file_in_place_of_a_fifo_is_not_written_to(pipe, tree):
    (tree.data / "t_0").unlink()
    (tree.data / "t_0").write_text("")
    pipe.start()
    wait_for_fault(pipe)

    assert "" == (tree.data / "t_0").read_text()


def test_a_directory_of_fifos_that_is_replaced_is_left_alone(pipe, tree, own):
    """FIFOs stay in the directory that was there before the host started."""
    tree.data.rename(tree.root / "moved")
    tree.data.symlink_to(own)
    pipe.start()

    assert "data of the channel" == (tree.root / "moved/t_0").read_text()
    assert "data of the channel" == (tree.root / "moved/t_1").read_text()
    assert ["file"] == [path.name for path in own.iterdir()]


def test_a_job_whose_fifo_became_a_link_fails(runner, request_for, script, data, own):
    script(f"""
        import os, time
        pipe = base / "input/data/a_1"
        pipe.unlink()
        pipe.symlink_to({str(own / "file")!r})
        (base / "input/data/a_0").read_bytes()
        time.sleep(20)
    """)
    given = channel(data, mode="Pipe")
    described = run(runner, request_for(hosts=1, InputDataConfig=[given]))

    assert "Failed" == described["TrainingJobStatus"]
    assert SECRET == (own / "file").read_text()


@pytest.mark.parametrize("part", ["output/failure", "output"])
def test_a_linked_failure_is_not_read(tree, tmp_path, part):
    """A file outside of the tree is not shown as the reason of a failure."""
    (tmp_path / "failure").write_text(SECRET)
    (tmp_path / "failure.json").write_text(json.dumps({"exception": SECRET}))
    if part == "output":
        (tree.root / "output/data").rmdir()
        (tree.root / "output").rmdir()
        (tree.root / "output").symlink_to(tmp_path)
    else:
        for name in ("failure", "failure.json"):
            (tree.root / "output" / name).symlink_to(tmp_path / name)

    assert ("", {}) == (tree.failure(), tree.failure_fields())


def test_nobody_waits_for_a_failure(tree):
    """A FIFO, a directory or a socket in place of the files counts as no text."""
    os.mkfifo(tree.root / "output/failure")
    (tree.root / "output/failure.json").mkdir()
    first = tree.failure(), tree.failure_fields()
    (tree.root / "output/failure").unlink()
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(tree.root / "output", os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/failure")
        os.close(here)

        assert ("", {}) == first == (tree.failure(), tree.failure_fields())


def test_a_failure_is_read_up_to_a_limit(tree):
    """A sparse file of a TiB and thousands of nested lists do not break the reader."""
    with (tree.root / "output/failure").open("wb") as file:
        file.write(b"boom")
        file.truncate(1 << 40)
    (tree.root / "output/failure.json").write_text("[" * 50_000)

    assert tree.failure().startswith("boom")
    assert len(tree.failure()) <= 1 << 16
    assert {} == tree.failure_fields()


def test_a_file_that_is_exchanged_while_it_is_opened_is_not_read(tree, own, monkeypatch):
    """A link that replaces a file between the check and the opening is not followed."""
    victim = tree.root / "model/file"
    victim.write_text("harmless")
    real = os.stat

    def exchange(*args, **kwargs):
        status = real(*args, **kwargs)
        victim.unlink()
        victim.symlink_to(own / "file")
        return status

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", exchange)
        with pytest.raises(OSError) as caught:  # noqa: PT011 - its number says which
            open_file(tree.root, "model/file")

    assert errno.ELOOP == caught.value.errno


@pytest.mark.parametrize("part", ["model", "output/data", "output"])
def test_a_linked_directory_is_refused(runner, request_for, script, own, part):
    """A directory that was replaced by a link is an error; what it points to is not packed."""
    script(f"""
        import shutil
        shutil.rmtree(base / {part!r})
        (base / {part!r}).symlink_to({str(own)!r})
    """)
    (own / "data").mkdir()
    (own / "data/secret").write_text(SECRET)
    described = run(runner, request_for(hosts=1))
    cause = described["RootCause"]
    about = "model" if part == "model" else "output.data"

    assert "Failed" == described["TrainingJobStatus"]
    assert (about, "link") == (cause["about"], cause["kind"])
    assert not list(runner.root.glob("job/output/*"))


def test_links_are_packed_as_links(tree, own, tmp_path):
    (tree.root / "model/link").symlink_to(own / "file")
    (tree.root / "model/folder").symlink_to(own)
    (tree.root / "model/file").write_text("1")
    os.link(tree.root / "model/file", tree.root / "model/same")
    merged = merge([tree.root], "model")
    _pack(merged, tmp_path / "model.tar.gz", lambda: None)
    _copy(merged, tmp_path / "copied", lambda: None)
    with tarfile.open(tmp_path / "model.tar.gz") as archive:
        links = {each.name: each.linkname for each in archive if each.issym()}
        texts = {
            each.name: archive.extractfile(each).read()
            for each in archive
            if each.isfile() or each.islnk()
        }

    expected = {"link": str(own / "file"), "folder": str(own)}
    assert expected == links
    assert {"file": b"1", "same": b"1"} == texts
    assert expected == {
        path.name: str(path.readlink())
        for path in (tmp_path / "copied").iterdir()
        if path.is_symlink()
    }


def test_special_files_are_left_out_and_told(runner, request_for, script):
    """A FIFO in the model does not hang the job, and the log names it."""
    script("""
        import os
        os.mkfifo(base / "model/pipe")
        (base / "model/weights").write_text("1")
    """)
    described = run(runner, request_for(hosts=2))
    model = described["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("file://")
    with tarfile.open(model) as archive:
        names = archive.getnames()

    assert ["weights"] == names
    assert 1 == log(runner).count("pipe is left out")


def test_the_packing_of_an_endless_file_can_be_cancelled(tree, tmp_path):
    """A request to stop is noticed in the middle of a file."""
    with (tree.root / "model/sparse").open("wb") as file:
        file.truncate(1 << 40)
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 4:
            raise Cancelled

    with pytest.raises(Cancelled):
        _pack(merge([tree.root], "model"), tmp_path / "model.tar.gz", check)
    assert not list(tmp_path.glob("model.tar.gz*"))


def test_directories_nested_too_deep_are_refused(tree):
    directory = os.open(tree.root / "model", os.O_RDONLY)
    for _ in range(MAX_DEPTH + 1):
        os.mkdir("d", dir_fd=directory)
        below = os.open("d", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
    with pytest.raises(JobError) as caught:
        list(entries_below(tree.root, "model"))

    assert (("model",), "too_many") == (caught.value.about, caught.value.kind)


def test_directories_that_cannot_be_removed_fail_no_job(runner, request_for, script):
    """A host that nests thousands of directories does not hide how its job ended."""
    script("""
        import os
        os.chdir(base / "code")
        for _ in range(2000):
            os.mkdir("d")
            os.chdir("d")
    """)
    described = run(runner, request_for(hosts=1))
    nested = list(runner.root.glob("job/hosts/algo-1/code/d"))
    if nested:
        subprocess.run(["rm", "-r", *nested], check=True)

    assert "Completed" == described["TrainingJobStatus"]
