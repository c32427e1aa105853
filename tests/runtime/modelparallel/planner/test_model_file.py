# SPDX-License-Identifier: Apache-2.0
"""The user's file: what it makes, and how its faults are told."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.planner.model_file import ModelFile

GOOD = """
    import torch
    from torch import nn
    def model():
        return nn.Linear(4, 2)
    def example():
        return torch.zeros(8, 4)
    """


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Reads model.py with this text, from the folder that it is in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))  # what a file puts there goes with the test

    def write(text=GOOD, **more):
        for name, body in {"model": text, **more}.items():
            (tmp_path / f"{name}.py").write_text(dedent(body).lstrip("\n"))
        return ModelFile(Path("model.py"))

    return write


def test_model_has_no_values(read):
    """On meta, unless it is to be measured; the batch is real in both cases."""
    file = read()

    assert file.model("meta").weight.is_meta
    assert not file.model("cpu").weight.is_meta
    assert (8, 4) == file.example().shape
    assert not file.example().is_meta


def test_neighbours_can_be_imported(read):
    """Files beside it are found, as by `python model.py`."""
    file = read("from parts_of_it import example, model", parts_of_it=GOOD)

    assert 2 == file.model("meta").out_features


@pytest.mark.parametrize(
    "batch",
    ["(torch.zeros(2, 4), 3)", "{'x': torch.zeros(2, 4), 'flag': True}", "torch.zeros(2, 4)"],
)
def test_batches(read, batch):
    """A tensor, a tuple of positional arguments, a dict of keyword arguments."""
    assert read(GOOD.replace("torch.zeros(8, 4)", batch)).example() is not None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("def model", "def Model"),
            r"model.py does not define model\(\): .* Did you mean 'Model'",
        ),
        (
            ("def example", "def sample"),
            r"does not define example\(\): the planner calls this function",
        ),
        (("def model()", "def model(size)"), r"is a function with the parameters size: "),
        (
            ("def model():\n        return nn.Linear(4, 2)", "class model: pass"),
            "model of model.py is the class model: ",
        ),
        (("def model():\n        return", "model ="), "model of model.py is Linear"),
    ],
)
def test_functions_that_are_missing(read, change, said):
    with pytest.raises(OptionError, match=said):
        read(GOOD.replace(*change)).model("meta")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return torch.zeros(3)", r"model\(\) of model.py returned tensor\(\.\.\., device='meta'"),
        ("return nn.Linear", r"it must return a torch.nn.Module"),
        ("raise KeyError('vocab')", r"model.py, line 4 \(raise KeyError\('vocab'\)\) in model\(\)"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return deep()", r"model.py, line 7 \(return nn.Linear\(-1, 2\)\)"),
        ("return nn.Linear(torch.zeros(1).item(), 2)", "pass --measure"),
        ("return nn.Linear(len(torch.ones(2).nonzero()), 2)", "pass --measure"),
        ("raise RuntimeError('no vocabulary')", "no vocabulary. Correct the file there"),
        ("raise OSError('gpt2 needs the network')", "network. Correct the file there"),
        ("return undefined", "is not defined. Correct the file there"),
    ],
)
def test_faults_of_model(read, body, said):
    """They are told at the file's own last line."""
    text = f"""
    import torch
    from torch import nn
    def model():
        {body}
    def example(): return torch.zeros(2, 4)
    def deep():
        return nn.Linear(-1, 2)
    """
    with pytest.raises(OptionError, match=said):
        read(text).model("meta")


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ("[torch.zeros(2)]", "is a tensor, a tuple"),
        ("{}", "with at least one tensor"),
        ("3", "returned 3"),
        ("None", "returned None"),
        ("1 / 0", r"line 6 \(return 1 / 0\) in example\(\): ZeroDivisionError"),
    ],
)
def test_faults_of_example(read, batch, said):
    with pytest.raises(OptionError, match=said):
        read(GOOD.replace("torch.zeros(8, 4)", batch)).example()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import torch\ndef model(:\n", r"model.py, line 2 \(def model\(:\): SyntaxError"),
        ("import torch\n1 / 0\n", r"model.py, line 2 \(1 / 0\): ZeroDivisionError: division"),
        ("import not_there\n", r"line 1 \(import not_there\): ModuleNotFoundError"),
        ("raise SystemExit", r"line 1 \(raise SystemExit\): SystemExit"),
        ("", r"2 faults in this request(.|\n)*define model\(\)(.|\n)*define example\(\)"),
        ("model = example = 3\n", "2 faults"),
    ],
)
def test_faults_of_the_file(read, text, said):
    with pytest.raises(OptionError, match=said):
        read(text)


def test_faults_of_neighbours(read):
    """The line is that of the file that it is in."""
    with pytest.raises(OptionError, match=r"near.py, line 1 \(1 / 0\): ZeroDivisionError"):
        read("import near", near="1 / 0")


def test_missing_file(tmp_path):
    with pytest.raises(OptionError, match="the file does not exist"):
        ModelFile(tmp_path / "model.py")


def test_ctrl_c_is_no_fault_of_the_file(read):
    with pytest.raises(KeyboardInterrupt):
        read("raise KeyboardInterrupt")


def test_tensors_are_real_after_model(read):
    """The device of the call to model() stays with it."""
    read().model("meta")

    assert not torch.zeros(1).is_meta
