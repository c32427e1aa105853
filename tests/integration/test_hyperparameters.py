# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters reach the script of a real job unchanged, and nothing evaluates them."""

import json
import time
from types import SimpleNamespace

import pytest
from hyperparameters import JSON_TEXTS, READ, TEXTS, VALUES, commands, differences, read_by

from sagemaker_dist import (
    DataParallel,
    Estimator,
    HuggingFace,
    OptionError,
    PyTorch,
    TensorFlow,
    TrainingJob,
)
from sagemaker_dist.jobs import read_job_file
from sagemaker_dist.runners.local.output import Segments

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Return a function that builds an estimator of any class; each process of its job writes its
    values.
    """
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    for folder in (tmp_path, tmp_path / "source"):
        (folder / "train.py").write_text(READ)

    def make(kind, **options):
        if kind is HuggingFace:
            options["py_version"] = None
        settings = {
            "entry_point": "train.py",
            "source_dir": str(tmp_path / "source"),
            "instance_type": "local_process",
            "instance_count": 1,
            "output_path": (tmp_path / "output").as_uri(),
            **options,
        }
        return kind(**settings)

    return make


@pytest.mark.parametrize("kind", [Estimator, HuggingFace, PyTorch, TensorFlow])
def test_a_script_gets_what_was_given(build, tmp_path, kind):
    """Command line and variables have the values; text that looks like JSON stays text."""
    given = {**TEXTS, **VALUES, **commands(tmp_path / "canary")}
    own = {"model_dir": False} if kind is TensorFlow else {}  # or it would be one more
    estimator = build(kind, hyperparameters=dict(given), **own)
    estimator.fit()
    (got,) = read_by(estimator).values()

    assert {} == differences(given, got)
    assert not (tmp_path / "canary").exists()


def test_a_job_by_boto3_and_its_file_carry_the_same(build, tmp_path):
    """TrainingJob and a job file give the same values."""
    given = {**TEXTS, **VALUES, **commands(tmp_path / "canary")}
    texts = {name: text for name, text in given.items() if isinstance(text, str)}
    lines = [f"{json.dumps(name)} = {_toml(text)}" for name, text in texts.items()]
    place = (tmp_path / "output").as_uri()
    head = f'entry_point = "train.py"\nsource_dir = "source"\noutput_path = "{place}"\n'
    head += 'instance_type = "local_process"\n[hyperparameters]\n'
    (tmp_path / "job.toml").write_text(head + "\n".join(lines), encoding="utf-8")
    filed = read_job_file(tmp_path / "job.toml").job()
    direct = build(TrainingJob, hyperparameters=given)
    for job, expected in ((direct, given), (filed, texts)):
        job.submit()
        job.wait()
        model = job.describe()["ModelArtifacts"]["S3ModelArtifacts"]
        (got,) = read_by(SimpleNamespace(model_data=model)).values()

        assert {} == differences(expected, got)
    assert not (tmp_path / "canary").exists()


def _toml(text):
    """Return a TOML basic string: as in JSON, without surrogate pairs."""
    plain = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in plain)


def test_every_rank_gets_what_was_given(build, tmp_path):
    """Values pass through torchrun, which has macros of its own, unchanged."""
    given = {**TEXTS, **VALUES, **commands(tmp_path / "canary")}
    world = DataParallel(processes_per_host=2)
    estimator = build(PyTorch, instance_count=2, distribution=world, hyperparameters=dict(given))
    estimator.fit()
    read = read_by(estimator)

    assert 4 == len(read)
    assert [{}] * 4 == [differences(given, got) for got in read.values()]
    assert not (tmp_path / "canary").exists()


def test_a_generic_estimator_without_source_dir_writes_text(build, tmp_path):
    """The SDK sends str() of each value; text that is no JSON arrives unchanged."""
    given = {name: text for name, text in TEXTS.items() if name not in {*JSON_TEXTS, "minus"}}
    given |= commands(tmp_path / "canary")
    others = {"flag": True, "nothing": None, "mapping": {"a": 1}}
    estimator = build(Estimator, source_dir=None, hyperparameters={**given, **others})
    estimator.fit()
    (got,) = read_by(estimator).values()

    assert {} == differences({**given, **{name: str(each) for name, each in others.items()}}, got)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("hyperparameters", "about"),
    [
        ({"a": "x\0y"}, ("a",)),
        ({"a": {"k": "\0"}}, ("a",)),
        ({"a": "\ud83d"}, ("a",)),
        ({"a": "\udcc3\udca9"}, ("a",)),
        ({"n\0": 1}, ("n\0",)),
        ({"\ud800": 1}, ("\ud800",)),
        ({"two words": 1}, ("two words",)),
        ({"a=b": 1}, ("a=b",)),
        ({"-a": 1}, ("-a",)),
        ({"": 1}, ("",)),
        ({"sagemaker_q": 1}, ("sagemaker_q",)),
        ({"a": "x" * 140_000}, ()),
    ],
)
def test_what_no_script_gets_is_refused_by_name(build, tmp_path, hyperparameters, about):
    """Values that cannot be passed on are refused before the job's folder is created."""
    with pytest.raises(OptionError) as caught:
        build(PyTorch, hyperparameters=hyperparameters).fit()

    assert ("hyperparameters", *about) == caught.value.about
    assert not (tmp_path / "home/.sagemaker-dist").exists()


def test_as_much_as_one_variable_holds_arrives(build):
    """Values up to Linux's limit for one variable arrive, more than SageMaker's 2,500
    characters.
    """
    given = {f"k{number}": '"' * 900 for number in range(60)} | {"long": "x" * 9000}
    estimator = build(PyTorch, hyperparameters=dict(given))
    estimator.fit()
    (got,) = read_by(estimator).values()

    assert {} == differences(given, got)


def test_a_long_line_is_taken_in_at_once():
    """A value of 100 kB, and a line of a megabyte in the output, are handled without delay."""
    segments, began = Segments(), time.process_time()
    cut = [segment for _ in range(16) for segment in segments.feed(b"x" * 65536)]
    cut += segments.feed(b"y\r\nz\rw")
    seconds = time.process_time() - began

    assert [b"x" * (1 << 20) + b"y\r\n", b"z\r"] == cut
    assert seconds < 2
