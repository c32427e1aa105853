# SPDX-License-Identifier: Apache-2.0
"""Objects are restored without running code, and checkpoints of older versions load."""

import argparse
import collections
import datetime
import fractions
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError, parts_of
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.checkpoint import (
    CheckpointError,
    load,
    resume_from_checkpoint,
    save,
    save_checkpoint,
)

RELEASED = Path(__file__).parent / "released"
SAFE = {
    "numbers": [1, 2.5, 3j, True, None, 10**30, np.float32(2), np.bool_(1), np.int64(3)],
    "texts": ("a", b"b", bytearray(b"c"), np.str_("d")),
    "containers": [{1}, frozenset({2}), collections.OrderedDict(a=1), collections.Counter("aab")],
    "tensors": {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.bfloat16), "c": torch.Size([3])},
    "arrays": [np.arange(6).reshape(2, 3), np.array(["a", "bc"]), np.datetime64("2026-01-01")],
    "random": np.random.RandomState(1).get_state(),
    "time": [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.timedelta(1)],
    "arguments": argparse.Namespace(lr=0.1, path=Path("a/b")),
    "dtype": torch.float16,
    "slices": (range(3), slice(1, 2)),
}


class Config:
    """Class of a script."""


class Mapping(dict):
    """Class of a script that is nearly a dict."""


def same(one, other):
    return repr(one) == repr(other)


@pytest.mark.parametrize("partial", [True, False])
def test_plain_data_comes_back(tmp_path, partial):
    """Every class of the list, without allow_pickle."""
    model = nn.Linear(2, 2)
    save_checkpoint(tmp_path, 1, partial, model, user_content=SAFE)
    found = resume_from_checkpoint(tmp_path, partial=partial, model=model)

    assert SAFE.keys() == found.keys()
    for key, value in SAFE.items():
        assert same(value, found[key]), key


@pytest.mark.parametrize("partial", [True, False])
def test_other_classes_are_refused_by_name(tmp_path, partial):
    """Each key and class is named, and the option that allows them; nothing is written."""
    content = {"step": 1, "args": [Config()], "more": {"map": Mapping(a=1), "set": {1}}}
    model = nn.Linear(2, 2)
    with pytest.raises(OptionError) as caught:
        save_checkpoint(tmp_path, 1, partial, model, user_content=content)
    faults = parts_of(caught.value)

    assert [
        (("user_content", "args", 0), "unsafe"),
        (("user_content", "more", "map"), "unsafe"),
    ] == [(fault.about, fault.kind) for fault in faults]
    assert "Config" in faults[0].what
    assert "allow_pickle=True" in faults[0].hint
    assert not tmp_path.joinpath("newest").exists()

    save_checkpoint(tmp_path, 1, partial, model, user_content=content, allow_pickle=True)
    with pytest.raises(CheckpointError) as refused:
        resume_from_checkpoint(tmp_path, partial=partial, model=model)
    assert ("pickled", ("allow_pickle",)) == (refused.value.kind, refused.value.about)
    assert "allow_pickle=True" in refused.value.hint
    found = resume_from_checkpoint(tmp_path, partial=partial, model=model, allow_pickle=True)
    assert isinstance(found["more"]["map"], Mapping)


class Scheduler:
    """Scheduler or data loader whose state is an object of a class of the script."""

    def state_dict(self):
        return {"state": Config()}


class Extra(nn.Module):
    def get_extra_state(self):
        return Config()


def test_states_are_content_too(tmp_path):
    """States of the scheduler, of the data and of modules are checked and named in one error."""
    asked = [
        ({"model": nn.Linear(2, 2), "scheduler": Scheduler()}, ("record", "scheduler", "state")),
        ({"model": nn.Linear(2, 2), "data": Scheduler()}, ("record", "data", 0, 1, "state")),
        ({"model": Extra()}, ("model._extra_state",)),
    ]
    for options, about in asked:
        with pytest.raises(OptionError) as caught:
            save_checkpoint(tmp_path, 1, **options)
        assert (about, "unsafe") == (caught.value.about, caught.value.kind)


class Runs:
    """Object that creates a file when pickle restores it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("partial", [True, False])
def test_loading_runs_no_code(tmp_path, partial):
    """The object of a hostile writer is refused; with the option it would run."""
    model = nn.Linear(2, 2)
    content = Runs(tmp_path / "ran")
    save_checkpoint(tmp_path, 1, partial, model, user_content=content, allow_pickle=True)
    with pytest.raises(CheckpointError):
        resume_from_checkpoint(tmp_path, partial=partial, model=model)
    assert not (tmp_path / "ran").exists()
    resume_from_checkpoint(tmp_path, partial=partial, model=model, allow_pickle=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("kind", ["plain", "pickled"])
def test_checkpoints_of_the_first_format(tmp_path, kind, partial):
    """They load, where they have pickled content with the option, and may lie beside new ones."""
    path = shutil.copytree(RELEASED / kind, tmp_path / kind)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1])
    options = {"model": model, "optimizer": optimizer, "partial": partial}
    if kind == "pickled":
        with pytest.raises(CheckpointError) as caught:
            resume_from_checkpoint(path, **options)
        assert "pickled" == caught.value.kind
        content = resume_from_checkpoint(path, **options, allow_pickle=True)
        assert {"third": fractions.Fraction(1, 3)} == content
    else:
        assert {"step": 10} == resume_from_checkpoint(path, **options, scheduler=scheduler)
        assert {3: 1, 5: 1} == scheduler.milestones
    assert [[1, 2], [3, 4]] == model.weight.tolist()
    assert 0.5 == optimizer.param_groups[0]["lr"]

    save_checkpoint(path, "20", partial, model, user_content=20)
    assert 20 == resume_from_checkpoint(path, partial=partial, model=model)


@pytest.fixture
def alone(monkeypatch):
    """smp.save and smp.load of a single process."""
    groups = argparse.Namespace(rdp_rank=0, rank=0, pp_rank=0, tp_rank=0, tp_size=1)
    monkeypatch.setattr(session, "current", lambda: argparse.Namespace(groups=groups))


def test_files_of_single_objects(tmp_path, alone):
    """smp.save refuses by key and class, smp.load reads plain data only."""
    file = tmp_path / "a.pt"
    save(SAFE, file)
    assert same(SAFE, load(file))
    with pytest.raises(OptionError) as caught:
        save({"args": Config()}, file)
    assert (("obj", "args"), "unsafe") == (caught.value.about, caught.value.kind)
    assert same(SAFE, load(file))

    save({"args": Config()}, file, allow_pickle=True)
    with pytest.raises(CheckpointError) as refused:
        load(file)
    assert "pickled" == refused.value.kind
    assert isinstance(load(file, allow_pickle=True)["args"], Config)


def test_another_pickle_module_needs_the_option(tmp_path, alone):
    """The module decides what runs, so that the file cannot be checked."""
    other = type(pickle)("other")
    other.__dict__.update({k: v for k, v in vars(pickle).items() if not k.startswith("__")})
    for call in (lambda: save(1, tmp_path / "a", pickle_module=other),
                 lambda: load(tmp_path / "a", pickle_module=other)):  # fmt: skip
        with pytest.raises(OptionError) as caught:
            call()
        assert ("pickle_module",) == caught.value.about
    save(1, tmp_path / "a", pickle_module=other, allow_pickle=True)
    assert 1 == load(tmp_path / "a", pickle_module=other, allow_pickle=True)
