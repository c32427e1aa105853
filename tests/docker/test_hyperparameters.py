# SPDX-License-Identifier: Apache-2.0
"""Hyperparameters reach scripts in containers as they were given, and nothing evaluates them.

Between the request and the script are Docker, the image's entry point, our init and torchrun.
"""

from pathlib import PurePosixPath

import pytest
from hyperparameters import READ, TEXTS, VALUES, commands, differences, read_by

from sagemaker_dist import DataParallel, Estimator, OptionError, PyTorch

pytestmark = pytest.mark.timeout(400, func_only=True)

CANARY = PurePosixPath("/opt/ml/model/canary")  # what is made there is kept with the model


@pytest.fixture
def build(image, tmp_path, monkeypatch):
    """Builds an estimator whose hosts are containers; each process writes what it got."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "source").mkdir()
    (tmp_path / "source/train.py").write_text(READ)

    def make(kind, **options):
        return kind(
            entry_point="train.py",
            source_dir=str(tmp_path / "source"),
            instance_type="local",
            image_uri=image.name,
            output_path=(tmp_path / "output").as_uri(),
            **options,
        )

    return make


@pytest.mark.parametrize(
    ("kind", "options", "num_processes"),
    [
        (PyTorch, {"instance_count": 1}, 1),
        (Estimator, {"instance_count": 1}, 1),
        (PyTorch, {"instance_count": 2, "distribution": DataParallel(processes_per_host=2)}, 4),
    ],
)
def test_a_script_gets_what_was_given(build, kind, options, num_processes):
    """By its command line and each variable; the model has the scripts' files and no other."""
    given = {**TEXTS, **VALUES, **commands(CANARY)}
    estimator = build(kind, hyperparameters=dict(given), **options)
    estimator.fit()
    read = read_by(estimator)

    assert num_processes == len(read)
    assert all(name.endswith(".json") for name in read)
    assert [{}] * num_processes == [differences(given, got) for got in read.values()]


def test_what_no_script_gets_is_refused_before_a_container_is_made(build, engine, tmp_path):
    before = engine.containers.list(all=True)
    with pytest.raises(OptionError) as caught:
        build(PyTorch, instance_count=1, hyperparameters={"a": "x\0y"}).fit()

    assert ("hyperparameters", "a") == caught.value.about
    assert before == engine.containers.list(all=True)
    assert not (tmp_path / "home/.sagemaker-dist").exists()
