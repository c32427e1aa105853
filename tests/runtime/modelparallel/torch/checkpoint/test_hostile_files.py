# SPDX-License-Identifier: Apache-2.0
"""Files of a stranger in a folder of checkpoints cost neither time nor memory nor a checkpoint."""

import io
import os
import pickle
import warnings
import zipfile
import zlib

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.checkpoint import (
    CheckpointError,
    SkippedCheckpointWarning,
    resume_from_checkpoint,
    save_checkpoint,
)
from smdist.modelparallel.torch.checkpoint.dcp_metadata import file_sizes
from smdist.modelparallel.torch.checkpoint.metadata_trailer import Trailer, with_trailer

NEWER = "0fffffffffffabcdef"  # number of a save in the far future
TERABYTE = 1 << 40
RANGE = b"c__builtin__\nrange\nK\x00\x8a\x06\x00\x00\x00\x00\x00\x01\x86R"  # of 2 ** 40 numbers
PAIRS = b"K\x01K\x01\x86q\x00" + b"".join(
    b"h%ch%c\x86q%c" % (at, at, at + 1) for at in range(60)
)  # 2 ** 60 numbers in pairs of pairs
PICKLES = {
    "key": b"}" + PAIRS + b"K\x01s.",
    "keys": b"}(" + PAIRS + b"K\x01u.",
    "argument": b"c__builtin__\nfrozenset\n" + PAIRS + b"\x85R.",
    "storage": PAIRS + b"Q.",
    "set of a range": b"c__builtin__\nset\n" + RANGE + b"\x85R.",
    "frozenset of a range": b"c__builtin__\nfrozenset\n" + RANGE + b"\x85\x81.",
    "counter of a range": b"ccollections\nCounter\n" + RANGE + b"\x85R.",
    "without an end": b"}",
    "empty": b"",
    "other operations": b"K\x01\x8c\x01a0.",
    "absent memo": b"h\x07.",
    "absent mark": b"t.",
}


@pytest.fixture
def folder(tmp_path):
    """Folder with the checkpoints "1" and "2"."""
    for tag in ("1", "2"):
        save_checkpoint(tmp_path, tag, model=nn.Linear(2, 2), user_content=tag)
    return tmp_path


def load(path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedCheckpointWarning)
        return resume_from_checkpoint(path, model=nn.Linear(2, 2), **options)


def sealed(line):
    """Return metadata whose list of files is a line, with the right checksum."""
    data = b"smdist.checkpoint.2.\n" + line + b"\n"
    return data + b"%08x\n" % zlib.crc32(data)


def sparse(path):
    with path.open("wb") as stream:
        stream.truncate(TERABYTE)


PLACES = ["newest", "9_partial/.metadata", f"9_partial/{NEWER}.metadata"]
KINDS = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "terabyte": sparse,
    "folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", PLACES)
def test_other_kinds_of_files_are_left_out(folder, place, kind):
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    assert "2" == load(folder)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 200_000,
        b'{"save": "zz", "files": {}}',
        b'{"save": "", "files": {}}',
        b'{"save": "' + b"f" * 5000 + b'", "files": {}}',
        b'{"save": "\\u001b[31m", "files": {}}',
        b'{"save": "0fffffffffff", "files": []}',
        b'{"save": "0fffffffffff", "files": {"0fffffffffff_0_0.distcp": NaN}}',
        b'{"save": 1}',
        b"[]",
    ],
)
@pytest.mark.parametrize("place", PLACES[1:])
def test_wrong_lists_of_files_load_the_next_older(folder, place, line):
    path = folder / place
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(sealed(line))
    assert "2" == load(folder)


def put(folder, key, data, **changes):
    """Put bytes in place of an object of checkpoint 2; size and checksum of them are right."""
    path = folder / "2_partial"
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for index, place in metadata.storage_data.items():
        number = place.relative_path.split("_")[0]
        if index.fqn == key:
            file = path / place.relative_path
            old = file.read_bytes()
            file.write_bytes(old + data)
            place.offset, place.length, place.crc = len(old), len(data), zlib.crc32(data)
            vars(place).update(changes)
    sizes = file_sizes(metadata)
    sizes = sizes if not changes else dict.fromkeys(sizes, 1)
    content = with_trailer(pickle.dumps(metadata), Trailer(number, sizes))
    for name in (".metadata", f"{number}.metadata"):
        (path / name).write_bytes(content)


def archive(pickled):
    """Return a file of torch.save with another pickle."""
    stream, made = io.BytesIO(), io.BytesIO()
    torch.save({"a": 1}, stream)
    with zipfile.ZipFile(stream) as source, zipfile.ZipFile(made, "w") as target:
        for name in source.namelist():
            target.writestr(name, pickled if name.endswith("data.pkl") else source.read(name))
    return made.getvalue()


@pytest.mark.parametrize("name", PICKLES)
@pytest.mark.parametrize("key", ["user_content", "record", "model.weight"])
def test_pickles_that_are_not_quick_load_the_next_older(folder, key, name):
    put(folder, key, archive(b"\x80\x02" + PICKLES[name]))
    assert "1" == load(folder)


@pytest.mark.parametrize("name", PICKLES)
def test_full_checkpoints_likewise(tmp_path, name):
    save_checkpoint(tmp_path, "1", model=nn.Linear(2, 2), user_content="1", partial=False)
    (tmp_path / "9").write_bytes(archive(b"\x80\x02" + PICKLES[name]))
    (tmp_path / "newest").write_text("9")
    assert "1" == load(tmp_path, partial=False)


@pytest.mark.parametrize("length", [1 << 34, 1 << 62])
def test_lengths_beyond_the_file_are_not_read(folder, length):
    put(folder, "user_content", b"", length=length)
    assert "1" == load(folder)


@pytest.mark.parametrize("data", [b"", b"no archive", archive(b"\x80\x02}.")])
def test_objects_that_are_no_description_load_the_next_older(folder, data):
    put(folder, "record", data)
    assert "1" == load(folder)


def test_a_lock_that_is_a_link_changes_no_other_file(folder, tmp_path_factory):
    """A link is an error; a second name of a file keeps its contents."""
    other = tmp_path_factory.mktemp("other") / "diary"
    other.write_text("mine")
    (folder / ".lock").symlink_to(other)
    with pytest.raises(CheckpointError):
        save_checkpoint(folder, "3", model=nn.Linear(2, 2))
    (folder / ".lock").unlink()
    (folder / ".lock").hardlink_to(other)
    save_checkpoint(folder, "3", model=nn.Linear(2, 2))
    assert "mine" == other.read_text()


def test_temporary_files_of_others_stay(folder):
    (folder / ".mine.part").write_text("mine")
    (folder / ".newest.0123456789ab.part").write_text("of a save that was killed")
    save_checkpoint(folder, "3", model=nn.Linear(2, 2))
    assert [".mine.part"] == [each.name for each in folder.glob(".*.part")]
