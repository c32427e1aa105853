# SPDX-License-Identifier: Apache-2.0
"""The user's file: what it makes, and how its faults are told."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from sagemaker_dist.errors import OptionError, OptionErrors
from smdist.modelparallel.planner.model_file import ModelFile, UserCodeError
from smdist.modelparallel.torch.program.batch import Batch

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

    assert file.model(with_values=False).weight.is_meta
    assert not file.model(with_values=True).weight.is_meta
    assert (8, 4) == file.example().shape
    assert not file.example().is_meta


def test_neighbours_can_be_imported(read):
    """Files beside it are found, as by `python model.py`."""
    file = read("from parts_of_it import example, model", parts_of_it=GOOD)

    assert 2 == file.model(with_values=False).out_features


@pytest.mark.parametrize(
    "batch",
    ["(torch.zeros(2, 4), 3)", "{'x': torch.zeros(2, 4), 'flag': True}", "torch.zeros(2, 4)"],
)
def test_batches(read, batch):
    """A tensor, a tuple of positional arguments, a dict of keyword arguments."""
    assert read(GOOD.replace("torch.zeros(8, 4)", batch)).example() is not None


@pytest.mark.parametrize(
    ("change", "about", "kind"),
    [
        (("def model", "def Model"), ("model",), "missing"),
        (("def example", "def sample"), ("example",), "missing"),
        (("def model()", "def model(size)"), ("model",), "not_a_function"),
        (
            ("def model():\n        return nn.Linear(4, 2)", "class model: pass"),
            ("model",),
            "not_a_function",
        ),
        (("def model():\n        return", "model ="), ("model",), "not_a_function"),
    ],
)
def test_functions_that_are_missing(read, change, about, kind):
    with pytest.raises(OptionError) as caught:
        read(GOOD.replace(*change)).model(with_values=False)

    assert (about, kind) == (caught.value.about, caught.value.kind)


def test_a_name_that_is_spelt_otherwise_is_offered(read):
    with pytest.raises(OptionError) as caught:
        read(GOOD.replace("def model", "def Model"))

    assert (
        "model.py does not define model(): the planner calls this function. Did you mean 'Model'?"
        " Define it: def model(): return nn.Sequential(…)."
    ) == str(caught.value)


@pytest.mark.parametrize(
    ("body", "kind", "line", "cause"),
    [
        ("raise KeyError('vocab')", "raised", 4, KeyError),
        ("raise SystemExit(3)", "raised", 4, SystemExit),
        ("return deep()", "raised", 7, RuntimeError),
        ("return nn.Linear(torch.zeros(1).item(), 2)", "no_values", 4, RuntimeError),
        ("return nn.Linear(len(torch.ones(2).nonzero()), 2)", "no_values", 4, RuntimeError),
        ("raise RuntimeError('no vocabulary')", "raised", 4, RuntimeError),
        ("raise OSError('gpt2 needs the network')", "raised", 4, OSError),
        ("return undefined", "raised", 4, NameError),
    ],
)
def test_errors_in_model(read, body, kind, line, cause):
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
    with pytest.raises(UserCodeError) as caught:
        read(text).model(with_values=False)

    error = caught.value
    assert (("model",), kind, "model.py", line) == (error.about, error.kind, error.file, error.line)
    assert isinstance(error.__cause__, cause)


@pytest.mark.parametrize("body", ["return torch.zeros(3)", "return nn.Linear"])
def test_what_is_no_model(read, body):
    with pytest.raises(OptionError) as caught:
        read(GOOD.replace("return nn.Linear(4, 2)", body)).model(with_values=False)

    assert (("model",), "result") == (caught.value.about, caught.value.kind)


@pytest.mark.parametrize("batch", ["[torch.zeros(2)]", "{}", "3", "None"])
def test_what_is_no_batch(read, batch):
    with pytest.raises(OptionError) as caught:
        read(GOOD.replace("torch.zeros(8, 4)", batch)).example()

    assert (("example",), "result") == (caught.value.about, caught.value.kind)


def test_errors_in_example(read):
    """The line and the error are in the text, and the file and the line in JSON."""
    with pytest.raises(UserCodeError) as caught:
        read(GOOD.replace("torch.zeros(8, 4)", "1 / 0")).example()

    assert (
        "model.py, line 6 (return 1 / 0) in example(): ZeroDivisionError: division by zero."
        " Correct the file there."
    ) == str(caught.value)
    document = caught.value.as_dict()
    assert ("raised", "example") == (document["kind"], document["about"])
    assert ("model.py", 6) == (document["file"], document["line"])


@pytest.mark.parametrize(
    ("text", "line", "cause"),
    [
        ("import torch\ndef model(:\n", 2, SyntaxError),
        ("import torch\n1 / 0\n", 2, ZeroDivisionError),
        ("import not_there\n", 1, ModuleNotFoundError),
        ("raise SystemExit", 1, SystemExit),
    ],
)
def test_errors_in_the_file(read, text, line, cause):
    with pytest.raises(UserCodeError) as caught:
        read(text)

    error = caught.value
    assert (("file",), "raised") == (error.about, error.kind)
    assert ("model.py", line) == (error.file, error.line)
    assert isinstance(error.__cause__, cause)


@pytest.mark.parametrize(
    ("text", "kind"), [("", "missing"), ("model = example = 3\n", "not_a_function")]
)
def test_faults_of_the_file_come_at_once(read, text, kind):
    with pytest.raises(OptionErrors) as caught:
        read(text)

    assert [(("model",), kind), (("example",), kind)] == [
        (each.about, each.kind) for each in caught.value.faults
    ]


def test_errors_in_neighbours(read):
    """The line is that of the file that it is in."""
    with pytest.raises(UserCodeError) as caught:
        read("import near", near="1 / 0")

    assert ("near.py", 1) == (caught.value.file, caught.value.line)


def test_missing_file(tmp_path):
    with pytest.raises(OptionError) as caught:
        ModelFile(tmp_path / "model.py")

    assert (("file",), "missing_file") == (caught.value.about, caught.value.kind)


def test_folder(tmp_path):
    """A folder exists, and has no functions."""
    with pytest.raises(OptionError) as caught:
        ModelFile(tmp_path)

    assert (("file",), "folder") == (caught.value.about, caught.value.kind)


def test_ctrl_c_is_no_fault_of_the_file(read):
    with pytest.raises(KeyboardInterrupt):
        read("raise KeyboardInterrupt")


def test_tensors_are_real_after_model(read):
    """The device of the call to model() stays with it."""
    read().model(with_values=False)

    assert not torch.zeros(1).is_meta


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        ("torch.tensor(3.0)", "example has no tensor with a dimension"),
        ("torch.zeros(0, 4)", "example has no samples"),
        ("(torch.zeros(0, 4), torch.tensor(1))", "example has no samples"),
    ],
)
def test_a_batch_without_samples(read, batch, what):
    """A tensor is looked at as a whole: rows are what a batch is counted by."""
    with pytest.raises(OptionError) as caught:
        Batch.of(read(GOOD.replace("torch.zeros(8, 4)", batch)).example())

    assert what == caught.value.what
