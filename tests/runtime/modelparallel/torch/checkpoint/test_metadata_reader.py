# SPDX-License-Identifier: Apache-2.0
"""Facts about the reader of a checkpoint's `.metadata`: what it takes, and that it runs no code."""

import os
import pickle
import warnings
from dataclasses import replace

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from smdist.modelparallel.torch.checkpoint.checkpoint_errors import CheckpointError
from smdist.modelparallel.torch.checkpoint.checkpoint_progress import CheckpointProgress
from smdist.modelparallel.torch.checkpoint.dcp_metadata import file_sizes, read_metadata
from smdist.modelparallel.torch.checkpoint.dcp_store import ShardWriter
from smdist.modelparallel.torch.checkpoint.metadata_trailer import (
    Trailer,
    split_trailer,
    with_trailer,
)

SAVE = "0123456789ab"
FILE = f"{SAVE}_0_0.distcp"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folder with the metadata of a checkpoint that smdist has written."""
    folder = tmp_path_factory.mktemp("checkpoint")
    values = {
        "model.a": torch.ones(3, 4, dtype=torch.bfloat16),
        "model.b": torch.zeros(0, dtype=torch.int64),
        "model.scalar": torch.tensor(1.0),
        "record": {"step": 3},
    }
    writer = ShardWriter(folder, SAVE, CheckpointProgress("", prints=False))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(values, storage_writer=writer, no_dist=True)
    return folder


def metadata_of(folder):
    return pickle.loads((folder / ".metadata").read_bytes())


def put(folder, content):
    data = content if isinstance(content, bytes) else pickle.dumps(content)
    (folder / ".metadata").write_bytes(with_trailer(data, Trailer(SAVE, {FILE: 1})))
    return folder


def test_reads_what_a_save_has_written(saved):
    found = read_metadata(saved)
    assert found == metadata_of(saved)
    assert [info.crc for info in found.storage_data.values()]
    assert file_sizes(found) == {FILE: (saved / FILE).stat().st_size}


class Runs:
    """Object that runs a command when pickle restores it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_runs_no_code_of_the_file(tmp_path):
    with pytest.raises(CheckpointError) as raised:
        read_metadata(put(tmp_path, Runs(tmp_path / "ran")))
    assert (raised.value.kind, raised.value.about) == ("corrupt", (".metadata",))
    assert not (tmp_path / "ran").exists()


def test_changes_no_class(tmp_path):
    """A pickle may set attributes of what it has found, and that may be a class."""
    found = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    state = pickle.dumps((None, {"version": "changed"}), protocol=2)[2:-1]
    with pytest.raises(CheckpointError) as raised:
        read_metadata(put(tmp_path, b"\x80\x02" + found + state + pickle.BUILD + b"."))
    assert raised.value.kind == "corrupt"
    assert dcp.metadata.Metadata.version is None


FOUND = b"ctorch.distributed.checkpoint.metadata\n"
TWICE = b")q\x00" + 60 * b"0h\x00h\x00\x86q\x00"  # a tuple of 2 ** 60 empty ones
ENDLESS = {
    "key": b"}" + TWICE + b"Ns.",
    "keys": b"}(" + TWICE + b"Nu.",
    "word": FOUND + b"_MEM_FORMAT_ENCODING\n" + TWICE + b"\x85R.",
    "layout": b"ctorch.serialization\n_get_layout\n" + TWICE + b"\x85R.",
    "state of a tensor": FOUND + b"TensorProperties\n)\x81(NNN" + TWICE + b"Ntb.",
    "bytes": b"\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "set": b"\x8f.",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_small_file_takes_little_time_and_memory(tmp_path, name):
    """Tuples that share their items, to be hashed or printed, and a size of a terabyte."""
    with pytest.raises(CheckpointError) as raised:
        read_metadata(put(tmp_path, b"\x80\x05" + ENDLESS[name]))
    assert "corrupt" == raised.value.kind
    assert 600 > len(str(raised.value))


def with_place(metadata, **changes):
    index, place = next(iter(metadata.storage_data.items()))
    return replace(metadata, storage_data={index: replace(place, **changes)})


def endless(depth):
    found = ()
    for _ in range(depth):
        found = (found, found)
    return found


WRONG = {
    "not metadata": lambda _: {"a": 1},
    "no pickle": lambda _: b"\x00garbage",
    "empty": lambda _: b"",
    "folder above": lambda found: with_place(found, relative_path=f"../{FILE}"),
    "absolute path": lambda found: with_place(found, relative_path="/etc/passwd"),
    "no name": lambda found: with_place(found, relative_path=""),
    "negative offset": lambda found: with_place(found, offset=-1),
    "length is no integer": lambda found: with_place(found, length=1.5),
    "huge length": lambda found: with_place(found, length=2**70),
    "place of no value": lambda found: replace(
        found, storage_data={MetadataIndex("other"): _StorageInfo("a", 0, 1)}
    ),
    "endless name": lambda found: with_place(found, relative_path=endless(60)),
    "no places": lambda found: replace(found, storage_data=None),
    "another value": lambda found: replace(found, state_dict_metadata={"model.a": 3}),
    "part outside": lambda found: replace(
        found,
        state_dict_metadata={
            **found.state_dict_metadata,
            "model.a": replace(
                found.state_dict_metadata["model.a"],
                chunks=[ChunkStorageMetadata(torch.Size([2, 0]), torch.Size([3, 4]))],
            ),
        },
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses_what_describes_no_checkpoint(saved, tmp_path, name):
    with pytest.raises(CheckpointError) as raised:
        read_metadata(put(tmp_path, WRONG[name](metadata_of(saved))))
    assert raised.value.kind == "corrupt"


def test_no_metadata_is_an_answer_of_its_own(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path)


def is_refused(data):
    try:
        split_trailer(data)
    except ValueError:
        return True
    return False


def test_every_bit_and_every_length_counts(saved, tmp_path):
    """A file with one changed bit, or without its last bytes, is refused."""
    data = (saved / ".metadata").read_bytes()
    whole = split_trailer(data)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        assert is_refused(bytes(changed)), at
        if data[:at].endswith(b"."):  # as the pickle of an older version ends
            (tmp_path / ".metadata").write_bytes(data[:at])
            with pytest.raises(CheckpointError):
                read_metadata(tmp_path)
        else:
            assert is_refused(data[:at]), at
    assert whole[1] == Trailer(SAVE, {FILE: (saved / FILE).stat().st_size})
    assert whole[0] == pickle.dumps(pickle.loads(data))


def test_torch_reads_the_file(saved):
    """torch.distributed.checkpoint loads the values, since the trailer is after the pickle."""
    into = {"model.a": torch.zeros(3, 4, dtype=torch.bfloat16)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(into, checkpoint_id=saved, no_dist=True)
    assert torch.equal(into["model.a"], torch.ones(3, 4, dtype=torch.bfloat16))
