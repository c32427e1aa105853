# SPDX-License-Identifier: Apache-2.0
"""Clocks that go back, two writers, full disks and files of others cost no checkpoint."""

import errno
import fcntl
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from smdist.modelparallel.torch.checkpoint import (
    CheckpointError,
    NoCheckpointError,
    SkippedCheckpointWarning,
    atomic_files,
    dcp_store,
    resume_from_checkpoint,
    save_checkpoint,
    saving,
    writer_lock,
)
from smdist.modelparallel.torch.checkpoint.writer_lock import WriterLock


def save(path, tag, **options):
    save_checkpoint(path, tag, model=nn.Linear(2, 2), user_content=tag, **options)


def load(path, tag=None, **options):
    return resume_from_checkpoint(path, tag, model=nn.Linear(2, 2), **options)


def names(path):
    return sorted(each.name for each in path.iterdir())


@pytest.mark.parametrize("partial", [True, False])
def test_clock_that_goes_back(tmp_path, monkeypatch, partial):
    """The checkpoint that was saved last is the newest, whatever the clock says."""
    save(tmp_path, "a", partial=partial)
    now = time.time_ns()
    for hours, tag in ((1, "b"), (2, "c")):
        monkeypatch.setattr(time, "time_ns", lambda back=hours: now - back * 3600 * 10**9)
        save(tmp_path, tag, partial=partial)
        assert tag == load(tmp_path, partial=partial)
        (tmp_path / "newest").unlink()
        assert tag == load(tmp_path, partial=partial)


def test_clock_that_goes_back_removes_nothing_new(tmp_path, monkeypatch):
    """The one that is saved stays, and the one before it."""
    for tag in ("a", "b"):
        save(tmp_path, tag)
    monkeypatch.setattr(time, "time_ns", lambda: 10**18)
    save(tmp_path, "c", num_kept_partial_checkpoints=2)
    assert ["b_partial", "c_partial", "newest"] == names(tmp_path)
    save(tmp_path, "d", num_kept_partial_checkpoints=1)
    assert ["d_partial", "newest"] == names(tmp_path)


def test_damaged_ones_are_not_counted_as_kept(tmp_path):
    """Of two that are kept, both are whole; a half one goes."""
    for tag in ("a", "b"):
        save(tmp_path, tag)
    [values] = (tmp_path / "b_partial").glob("*.distcp")
    values.unlink()
    save(tmp_path, "c", num_kept_partial_checkpoints=2)
    assert ["a_partial", "c_partial", "newest"] == names(tmp_path)


def test_second_writer_waits_or_is_refused(tmp_path, monkeypatch):
    """A job that lingers keeps its checkpoint, and the error names its process."""
    save(tmp_path, "a")
    lingering = WriterLock(tmp_path)
    lingering.acquire()
    monkeypatch.setattr(writer_lock, "WAIT_SECONDS", 0.1)
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path, "a")
    assert ("busy", ("path",)) == (caught.value.kind, caught.value.about)
    assert "a" == load(tmp_path)

    monkeypatch.setattr(writer_lock, "WAIT_SECONDS", 60.0)
    threading.Timer(0.2, lingering.release).start()
    save(tmp_path, "b")
    assert ["a_partial", "b_partial", "newest"] == names(tmp_path)


def test_a_lock_is_never_stale(tmp_path):
    """The file of a lock whose holder was killed keeps nobody out, and many writers take turns."""
    (tmp_path / ".lock").write_text("process 1 on a host that is gone")
    held, most = [], []

    def writes():
        for _ in range(20):
            lock = WriterLock(tmp_path)
            lock.acquire(30)
            held.append(1)
            most.append(len(held))
            held.pop()
            lock.release()

    threads = [threading.Thread(target=writes) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert [1] * 80 == most
    assert [] == names(tmp_path)


def test_two_writers_without_locks(tmp_path, monkeypatch):
    """A file system without locks: neither removes what the other has not finished."""

    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    finish = dcp_store.ShardWriter.finish
    inner = []

    def slow(writer, **arguments):
        if not inner:  # the other writer saves the same tag between this one's values and its end
            inner.append(1)
            save_checkpoint(tmp_path, "last", model=nn.Linear(2, 2), user_content="inner")
            assert "inner" == load(tmp_path)
        finish(writer, **arguments)

    monkeypatch.setattr(dcp_store.ShardWriter, "finish", slow)
    save_checkpoint(tmp_path, "last", model=nn.Linear(2, 2), user_content="outer")

    assert load(tmp_path) in {"inner", "outer"}
    assert load(tmp_path, "last") in {"inner", "outer"}


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
@pytest.mark.parametrize("tag", ["a", "b"])
def test_disk_that_is_full_at_any_write(tmp_path, monkeypatch, tag, failing):
    """Values, both metadata files and `newest`: the older one, or the new one, is loaded."""
    save_checkpoint(tmp_path, "a", model=nn.Linear(2, 2), user_content="old")
    count, fsync = [], dcp_store.os.fsync

    def full(descriptor):
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if not path.is_dir():
            count.append(path)
            if len(count) == failing:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(tmp_path, tag, model=nn.Linear(2, 2), user_content="new")
    monkeypatch.undo()

    assert "file" == caught.value.kind
    assert ("new" if failing == 4 else "old") == load(tmp_path)
    assert [] == list(tmp_path.rglob("*.part"))


def test_rank_that_is_lost_after_the_metadata_costs_nothing(tmp_path, monkeypatch):
    """The first save is complete as soon as its metadata is, although no rank was answered."""
    finished = saving.save_distributed

    def lost(*args, **kwargs):
        finished(*args, **kwargs)
        raise RuntimeError("rank 1 was lost")

    monkeypatch.setattr(saving, "save_distributed", lost)
    with pytest.raises(RuntimeError, match="rank 1 was lost"):
        save(tmp_path, "a")
    assert "a" == load(tmp_path)


@pytest.mark.parametrize("flush", [2, 3])
def test_interruption_after_a_rename_of_metadata(tmp_path, monkeypatch, flush):
    """Ctrl-C after either metadata file: a first save leaves nothing, a second one the older."""
    count, sync = [], dcp_store.sync_folder

    def interrupted(folder):
        sync(folder)
        if folder.name.endswith("_partial"):
            count.append(folder)
            if len(count) == flush:
                raise KeyboardInterrupt

    for module in (dcp_store, atomic_files):
        monkeypatch.setattr(module, "sync_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, "a")
    with pytest.raises(NoCheckpointError):
        load(tmp_path)
    save(tmp_path, "a")
    count.clear()
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, "b")
    assert "a" == load(tmp_path)


def test_foreign_files_are_neither_read_nor_removed(tmp_path):
    """Notes, links, archives, checkpoints of torch, a file and a folder with names of others."""
    save(tmp_path, "a")
    save(tmp_path, "whole", partial=False)
    (tmp_path / "a_partial" / "notes.txt").write_text("keep")
    (tmp_path / "file_partial").write_text("no folder")
    (tmp_path / "empty_partial").mkdir()
    (tmp_path / "log.txt").write_text("log")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link_partial").symlink_to("nowhere")
    torch.save({"model": 1}, tmp_path / "model.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.distributed is not initialized
        dcp.save({"x": torch.ones(2)}, checkpoint_id=tmp_path / "torch_partial", no_dist=True)
    (tmp_path / "newest").write_text("a")

    assert "a" == load(tmp_path)
    assert "whole" == load(tmp_path, "whole", partial=False)
    (tmp_path / "newest").unlink()
    assert "whole" == load(tmp_path, partial=False)
    with pytest.raises(CheckpointError):
        load(tmp_path, "torch")
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, "model.pt", partial=False)
    assert "foreign" == caught.value.kind

    before = set(names(tmp_path))
    save(tmp_path, "b", num_kept_partial_checkpoints=1)
    assert before | {"b_partial", "newest"} == set(names(tmp_path))
    assert ["notes.txt"] == names(tmp_path / "a_partial")
    assert "b" == load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"a/b", b"\xff\xfe", b"gone"])
def test_newest_that_names_nothing(tmp_path, content):
    """The checkpoint is found without it, and the warning says what is wrong."""
    save(tmp_path, "a")
    (tmp_path / "newest").write_bytes(content)
    with pytest.warns(SkippedCheckpointWarning) as caught:
        assert "a" == load(tmp_path)
    assert [("newest",)] == [each.files for each in caught[0].message.skipped]


def test_none_and_all_damaged_are_different_answers(tmp_path):
    """No folder, an empty one, a first save that was killed; then one whose values are lost."""
    (tmp_path / "empty").mkdir()
    killed = tmp_path / "killed" / "a_partial"
    killed.mkdir(parents=True)
    (killed / "0123456789ab012345_0_0.distcp").write_bytes(b"half")
    for name, skipped in (("none", []), ("empty", []), ("killed", ["a"])):
        with pytest.raises(NoCheckpointError) as caught:
            load(tmp_path / name)
        assert ("missing", skipped) == (caught.value.kind, [e.tag for e in caught.value.skipped])
        with pytest.raises(NoCheckpointError):
            load(tmp_path / name, partial=False)

    save(tmp_path / "lost", "a")
    [values] = (tmp_path / "lost" / "a_partial").glob("*.distcp")
    values.unlink()
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "lost")
    assert not isinstance(caught.value, NoCheckpointError)
    [skipped] = caught.value.skipped
    assert ("damaged", "incomplete", (values.name,)) == (
        caught.value.kind,
        skipped.kind,
        skipped.files,
    )
