# SPDX-License-Identifier: Apache-2.0
"""Of a folder that was copied in part, the newest whole checkpoint is loaded, and never a mix.

S3 copies single files in any order, and an interruption may come between any two of them.
"""

import itertools
import random
import shutil
import warnings
import zipfile

import pytest
import torch
from torch import nn

from smdist.modelparallel.torch.checkpoint import (
    CheckpointError,
    NoCheckpointError,
    SkippedCheckpointWarning,
    resume_from_checkpoint,
    save_checkpoint,
)


def model_of(value):
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, value)
    nn.init.constant_(model.bias, value)
    return model


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Folder with the checkpoints 10 and 20, whose values and user content are their tags."""
    path = tmp_path_factory.mktemp("two")
    for tag in (10, 20):
        save_checkpoint(path, tag, model=model_of(tag), user_content=tag)
    return path


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Folder with two saves under one tag: copies of old files stay where a copy removes none."""
    path = tmp_path_factory.mktemp("twice")
    save_checkpoint(path, "last", model=model_of(10), user_content=10)
    shutil.copytree(path / "last_partial", path / "kept")
    save_checkpoint(path, "last", model=model_of(20), user_content=20)
    for each in (path / "kept").glob("[0-9a-f]*"):
        each.rename(path / "last_partial" / each.name)
    shutil.rmtree(path / "kept")
    return path


def contents(path):
    """All files of a folder, by relative name."""
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def put(path, files):
    shutil.rmtree(path, ignore_errors=True)
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def loaded(path):
    """The value that is loaded, and the warnings' skipped tags; or the error."""
    model = model_of(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SkippedCheckpointWarning)
        try:
            content = resume_from_checkpoint(path, model=model)
        except CheckpointError as error:
            assert 0 == model.weight.abs().sum() + model.bias.abs().sum()
            return error, [each.tag for each in error.skipped]
    values = {*model.weight.flatten().tolist(), *model.bias.tolist()}
    assert {content} == values, "a mix of two checkpoints"
    return content, [each.tag for one in caught for each in one.message.skipped]


def whole(names, folder, number):
    metadata = {f"{folder}/.metadata", f"{folder}/{number}.metadata"} & names
    return bool(metadata) and f"{folder}/{number}_0_0.distcp" in names


def expected(names, numbers):
    """The newest whole checkpoint; without one, the class of the error."""
    for tag in (20, 10):
        if whole(names, f"{tag}_partial", numbers[tag]):
            return tag
    has_finished = "newest" in names or any(name.endswith(".metadata") for name in names)
    return CheckpointError if has_finished else NoCheckpointError


def numbers_of(files):
    names = [name for name in files if name.endswith(".distcp")]
    return {int(name[:2]): name.split("/")[1].split("_")[0] for name in names}


def test_every_subset_of_the_files(two, tmp_path):
    """128 subsets: the newest whole one is loaded, and a newer one that is not is named."""
    files = contents(two)
    numbers = numbers_of(files)

    assert 7 == len(files)
    for count in range(8):
        for names in map(set, itertools.combinations(files, count)):
            found, skipped = loaded(put(tmp_path / "part", {each: files[each] for each in names}))
            right = expected(names, numbers)

            assert (found if isinstance(right, int) else type(found)) == right, names
            if right == 10:
                has_trace = "newest" in names or any(name.startswith("20") for name in names)
                assert (["20"] if has_trace else []) == sorted({*skipped}), names
            if right is CheckpointError:
                assert "damaged" == found.kind


def test_every_file_cut_short_or_changed(two, tmp_path):
    """A file that is cut short or has a changed bit is as one that is missing, but for `newest`."""
    files = contents(two)
    numbers, draw = numbers_of(files), random.Random(0)

    for _ in range(60):
        names, damaged = {*files}, {}
        for name, data in files.items():
            fate = draw.choice(["whole", "whole", "absent", "short", "changed"])
            if fate == "short":
                damaged[name] = data[: draw.randrange(len(data))]
            elif fate == "changed":
                at = draw.randrange(len(data))
                damaged[name] = (
                    data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
                )
            if fate != "whole":
                names.discard(name)
        found, _ = loaded(put(tmp_path / "part", {**{n: files[n] for n in names}, **damaged}))
        right = expected(names, numbers)

        if isinstance(right, int):
            assert right == found, (names, damaged.keys())
        else:  # what is left of a metadata file tells that a save had finished
            assert isinstance(found, CheckpointError)


def test_every_bit_that_is_changed_is_named(two, tmp_path):
    """The tag and the file of the change are in the warning."""
    files, draw = contents(two), random.Random(1)
    newest = [name for name in files if name.startswith("20_partial")]

    assert 3 == len(newest)
    for name in newest * 3:
        data = bytearray(files[name])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        put(tmp_path / "part", {**files, name: bytes(data)})
        with pytest.warns(SkippedCheckpointWarning) as caught:
            resume_from_checkpoint(tmp_path / "part", model=model_of(0))
        [skipped] = caught[0].message.skipped

        assert ("20", "corrupt", (name.split("/")[1],)) == (
            skipped.tag,
            skipped.kind,
            skipped.files,
        )


def test_every_subset_of_two_saves_under_one_tag(twice, tmp_path):
    """The older save is loaded as long as the newer one has not arrived."""
    files = contents(twice)
    old, new = sorted(name.split("/")[1].split("_")[0] for name in files if "distcp" in name)

    assert 6 == len(files)
    for count in range(7):
        for names in map(set, itertools.combinations(files, count)):
            found, _ = loaded(put(tmp_path / "part", {each: files[each] for each in names}))
            has_old = {f"last_partial/{old}.metadata", f"last_partial/{old}_0_0.distcp"} <= names
            has_new = whole(names, "last_partial", new)

            if has_new or has_old:
                assert (20 if has_new else 10) == found, names
            else:
                assert isinstance(found, CheckpointError), names


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """Folder with the checkpoints 10 and 20, each in one file."""
    path = tmp_path_factory.mktemp("full")
    for tag in (10, 20):
        save_checkpoint(path, tag, False, model=model_of(tag), user_content=tag)
    return path


def full_loaded(path):
    model = model_of(0)
    content = resume_from_checkpoint(path, partial=False, model=model)
    assert torch.equal(model.weight, torch.full((2, 2), float(content)))
    return content


def test_files_of_the_whole(full, tmp_path):
    """A file that is missing, cut short or changed is skipped, whatever `newest` says."""
    files, draw = contents(full), random.Random(2)
    data = files["20"]
    assert 20 == full_loaded(full)
    assert 20 == full_loaded(put(tmp_path / "part", {"10": files["10"], "20": data}))
    with pytest.warns(SkippedCheckpointWarning) as warned:
        assert 10 == full_loaded(put(tmp_path / "part", {**files, "20": b""}))
    assert [("20", "missing")] == [(e.tag, e.kind) for e in warned[0].message.skipped]
    for _ in range(12):
        changed = bytearray(data)
        changed[draw.randrange(64, len(data) * 3 // 4)] ^= 1 << draw.randrange(8)
        put(tmp_path / "part", {**files, "20": bytes(changed)})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SkippedCheckpointWarning)
            found = full_loaded(tmp_path / "part")
        assert (10 if caught else 20) == found
        assert bool(caught) == (_members(bytes(changed), tmp_path) != _members(data, tmp_path))
    for length in (1, 100, len(data) // 2, len(data) - 1):
        put(tmp_path / "part", {**files, "20": data[:length]})
        with pytest.warns(SkippedCheckpointWarning):
            assert 10 == full_loaded(tmp_path / "part")


def _members(data, tmp_path):
    """Contents of all members of a zip archive; None if it is damaged."""
    file = tmp_path / "archive.zip"
    file.write_bytes(data)
    try:
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        return None
