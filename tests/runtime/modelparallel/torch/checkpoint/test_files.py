# SPDX-License-Identifier: Apache-2.0
"""A checkpoint is written completely or not at all, and faults of one are reported."""

import os
import pickle
import resource
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from checkpoints import make
from torch import nn

from sagemaker_dist.errors import OptionError, parts_of
from smdist.modelparallel.torch.checkpoint import (
    CheckpointError,
    SkippedCheckpointWarning,
    resume_from_checkpoint,
    save_checkpoint,
)


def killed_while_saving(path, tag, at):
    """Save in a forked process, which is killed before the rename number `at`; its exit code."""
    child = os.fork()
    if child == 0:
        try:
            count, replace = 0, Path.replace

            def dying(self, target):
                nonlocal count
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return replace(self, target)

            Path.replace = dying
            model, optimizer, _ = make(0)
            nn.init.constant_(model.spare, 3.0)
            save_checkpoint(path, tag, model=model, optimizer=optimizer, user_content=2)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.fixture
def saved(tmp_path):
    """A model and its checkpoint "old"."""
    model, optimizer, _ = make(0)
    save_checkpoint(tmp_path, "old", model=model, optimizer=optimizer, user_content={"epoch": 3})
    return model, optimizer


def values_file(folder: Path) -> Path:
    [found] = folder.glob("*.distcp")
    return found


@pytest.mark.parametrize(("tag", "at"), [("new", 2), ("old", 1), ("old", 2)])
def test_kill_before_a_rename_leaves_a_whole_one(tmp_path, tag, at):
    """The save is there as soon as its metadata is renamed, before `.metadata` and `newest`."""
    model, optimizer, _ = make(0)
    save_checkpoint(tmp_path, "old", model=model, optimizer=optimizer, user_content=1)
    code = killed_while_saving(tmp_path, tag, at)
    model, optimizer, _ = make(1)
    is_new = at == 2
    with nullcontext() if is_new else pytest.warns(SkippedCheckpointWarning) as skipping:
        content = resume_from_checkpoint(tmp_path, model=model, optimizer=optimizer)

    assert -signal.SIGKILL == code
    assert (2 if is_new else 1) == content
    assert (3.0 if is_new else 2.0) == model.spare[0]
    if not is_new:
        [each] = skipping[0].message.skipped
        assert (tag, "incomplete") == (each.tag, each.kind)


def test_leftovers_of_a_crash_go_with_the_next_save(tmp_path, saved):
    """Files of a save that was killed are not those of the one that is there."""
    model, optimizer = saved
    folder = tmp_path / "old_partial"
    (folder / "0123456789ab_0_0.distcp").write_bytes(b"half")
    save_checkpoint(tmp_path, "old", model=model, optimizer=optimizer)

    assert 3 == len(list(folder.iterdir()))


def test_full_disk_leaves_the_older_one(tmp_path, saved):
    """A limit on the size of files, as a full disk, is one error, and nothing stays behind."""
    model, optimizer = saved
    before = weights(model)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        with pytest.raises(CheckpointError) as caught:
            save_checkpoint(tmp_path, "new", model=model, optimizer=optimizer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    other, _, _ = make(1)
    resume_from_checkpoint(tmp_path, model=other, load_optimizer=False)

    assert ("file", (0,)) == (caught.value.kind, caught.value.ranks)
    assert same(before, weights(other))
    assert [] == list((tmp_path / "new_partial").iterdir())


def test_torn_values_are_named_and_change_nothing(tmp_path, saved):
    """One bit of one tensor: PyTorch itself would load it."""
    file = values_file(tmp_path / "old_partial")
    metadata = pickle.loads((tmp_path / "old_partial" / ".metadata").read_bytes())
    [info] = [i for k, i in metadata.storage_data.items() if k.fqn == "model.blocks.2.up"]
    data = bytearray(file.read_bytes())
    data[info.offset + info.length // 2] ^= 1
    file.write_bytes(data)
    model, _, _ = make(1)
    before = weights(model)

    raised = []
    for tag in ("old", None):
        with pytest.raises(CheckpointError) as caught:
            resume_from_checkpoint(tmp_path, tag, model=model, load_optimizer=False)
        raised.append(caught.value)
    one, none = raised

    assert (("model.blocks.2.up",), "corrupt") == (one.about, one.kind)
    assert (file.name,) == one.files
    assert ("damaged", [("old", "corrupt", (file.name,))]) == (
        none.kind,
        [(each.tag, each.kind, each.files) for each in none.skipped],
    )
    assert same(before, weights(model))


def test_corrupt_values_of_the_newest_load_the_next_older(tmp_path, saved):
    """The model is filled from one checkpoint alone, and the warning names the other."""
    model, optimizer = saved
    before = weights(model)
    with torch.no_grad():
        model.spare += 1
    save_checkpoint(tmp_path, "new", model=model, optimizer=optimizer)
    file = values_file(tmp_path / "new_partial")
    data = bytearray(file.read_bytes())
    data[data.index(b"PK") + 600] ^= 1
    file.write_bytes(data)
    other, second, _ = make(1)

    with pytest.warns(SkippedCheckpointWarning) as warned:
        content = resume_from_checkpoint(tmp_path, model=other, optimizer=second)
    [skipped] = warned[0].message.skipped
    assert ("new", "corrupt", (file.name,)) == (skipped.tag, skipped.kind, skipped.files)
    assert {"epoch": 3} == content
    assert same(before, weights(other))


def test_missing_file_of_the_newest_loads_the_next_older(tmp_path, saved):
    """An incomplete newest checkpoint is skipped with a warning; a given tag is an error."""
    model, optimizer = saved
    save_checkpoint(tmp_path, "new", model=model, optimizer=optimizer, user_content="new")
    file = values_file(tmp_path / "new_partial")
    os.truncate(file, file.stat().st_size - 1)

    with pytest.warns(UserWarning, match="'new'.*'old' is loaded"):
        assert {"epoch": 3} == resume_from_checkpoint(tmp_path, model=model, optimizer=optimizer)
    with pytest.raises(CheckpointError) as caught:
        resume_from_checkpoint(tmp_path, "new", model=model, optimizer=optimizer)
    assert ((file.name,), "incomplete") == (caught.value.about, caught.value.kind)
    assert "tag='old'" in caught.value.hint


def test_nothing_to_load_is_told(tmp_path, saved):
    """No folder, another tag, the other kind, and half a checkpoint."""
    model, _ = saved
    (tmp_path / "half_partial").mkdir()
    asked = [
        (tmp_path / "other", None, True),
        (tmp_path, "odl", True),
        (tmp_path, None, False),
        (tmp_path, "half", True),
    ]
    told = []
    for path, tag, partial in asked:
        with pytest.raises(CheckpointError) as caught:
            resume_from_checkpoint(path, tag, partial=partial, model=model)
        told.append((caught.value.about, caught.value.kind))

    assert [
        (("path",), "missing"),
        (("tag",), "missing"),
        (("partial",), "missing"),
        (("tag",), "incomplete"),
    ] == told


class Other(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(size, 8)
        self.strange = nn.Linear(2, 2)


def test_wrong_model_is_told_before_values_are_read(tmp_path, saved):
    """Missing names, surplus names and other shapes are reported at once."""
    model = Other(7)
    before = weights(model)

    with pytest.raises(OptionError) as caught:
        resume_from_checkpoint(tmp_path, model=model, load_optimizer=False)
    missing, surplus, shape = caught.value.faults
    assert [(("strict",), "missing"), (("strict",), "surplus"), (("embed.weight",), "shape")] == [
        (fault.about, fault.kind) for fault in (missing, surplus, shape)
    ]
    assert (
        "the checkpoint lacks strange.weight, strange.bias: the checkpoint was saved from Model"
        " and is loaded into Other. Load it into the model that was saved, or pass strict=False to"
        " load what both have." == str(missing)
    )
    assert same(before, weights(model))


def test_not_strict_loads_what_both_have(tmp_path, saved):
    """Shapes still have to fit."""
    model = Other(13)
    strange = model.strange.weight.clone()
    resume_from_checkpoint(tmp_path, strict=False, model=model, load_optimizer=False)

    assert torch.equal(saved[0].embed.weight, model.embed.weight)
    assert torch.equal(strange, model.strange.weight)


def test_other_optimizer_is_told(tmp_path, saved):
    """Another class, other parameters in it, other groups."""
    model, _, _ = make(1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)

    mixed = torch.optim.AdamW(model.parameters())
    save_checkpoint(tmp_path, "bare", model=model)
    told = []
    for tag, optimizer in (("old", sgd), ("old", mixed), ("bare", mixed)):
        with pytest.raises(OptionError) as caught:
            resume_from_checkpoint(tmp_path, tag, model=model, optimizer=optimizer)
        told.append([(fault.about, fault.kind) for fault in parts_of(caught.value)])

    about = ("load_optimizer",)
    assert [(about, "class"), [(about, "difference")], [(about, "missing")]] == [
        told[0][0],
        *told[1:],
    ]


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize(
    ("before", "after"), [(torch.float64, torch.float32), (torch.bfloat16, torch.float64)]
)
def test_optimizer_state_takes_the_dtype_of_its_parameter(tmp_path, partial, before, after):
    """A script that trains in another dtype than the one before goes on."""

    def trained(model, optimizer, dtype):
        model(torch.ones(3, 4, dtype=dtype)).sum().backward()
        optimizer.step()

    def made(dtype):
        model = nn.Linear(4, 2).to(dtype)
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    model, optimizer = made(before)
    trained(model, optimizer, before)
    save_checkpoint(tmp_path, "a", model=model, optimizer=optimizer, partial=partial)
    loaded, other = made(after)
    resume_from_checkpoint(tmp_path, model=loaded, optimizer=other, partial=partial)

    for one, two in zip(model.parameters(), loaded.parameters(), strict=True):
        mean, step = other.state[two]["exp_avg"], other.state[two]["step"]
        assert torch.equal(optimizer.state[one]["exp_avg"].to(after), mean)
        assert (after, torch.float32, 1.0) == (mean.dtype, step.dtype, step)
    trained(loaded, other, after)


def test_only_so_many_partial_ones_are_kept(tmp_path, saved):
    """The oldest go, and so does what a crash has left."""
    model, optimizer = saved
    (tmp_path / "crashed_partial").mkdir()
    (tmp_path / "crashed_partial" / "0123456789ab_0_0.distcp").write_bytes(b"half")
    for tag in range(3):
        save_checkpoint(
            tmp_path, tag, model=model, optimizer=optimizer, num_kept_partial_checkpoints=2
        )

    assert ["1_partial", "2_partial", "newest"] == sorted(each.name for each in tmp_path.iterdir())
    assert "2" == (tmp_path / "newest").read_text()


def test_what_cannot_be_pickled_is_named(tmp_path, saved):
    """The error has the key, and no checkpoint is written."""
    model, _ = saved

    for partial in (True, False):
        with pytest.raises(CheckpointError) as caught:
            save_checkpoint(tmp_path, "new", partial, model=model, user_content=lambda: None)
        assert (("user_content",), "not_picklable") == (caught.value.about, caught.value.kind)
    assert "old" == (tmp_path / "newest").read_text()


@pytest.mark.parametrize("tag", ["", "a/b", "newest", "x_partial", ".x", None, True])
def test_tags_are_names_of_files(tmp_path, saved, tag):
    """A tag that is no file name is refused."""
    with pytest.raises(OptionError) as caught:
        save_checkpoint(tmp_path, tag, model=saved[0])

    assert ("tag",) == caught.value.about


def test_interrupt_while_saving_is_the_users_own(tmp_path, saved):
    """Ctrl-C ends the script as ever, and the older one is whole."""
    model, optimizer = saved

    class Slow:
        def __reduce__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, "new", model=model, optimizer=optimizer, user_content=Slow())
    assert {"epoch": 3} == resume_from_checkpoint(tmp_path, model=model, optimizer=optimizer)
