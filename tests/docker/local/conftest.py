# SPDX-License-Identifier: Apache-2.0
"""Estimators of jobs in containers, with a home and a source directory of their own."""

from textwrap import dedent

import pytest

from sagemaker_dist import PyTorch


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    """Jobs leave their folders in a home that goes away."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def source(tmp_path):
    """Writes source/train.py and returns its directory."""
    folder = tmp_path / "source"
    folder.mkdir()

    def write(script: str):
        (folder / "train.py").write_text(dedent(script))
        return folder

    return write


@pytest.fixture
def job(source, image, tmp_path):
    """Makes an estimator whose hosts run a script in containers of the sagemaker-dist image."""

    def make(script: str, **options) -> PyTorch:
        return PyTorch(
            **{
                "entry_point": "train.py",
                "source_dir": str(source(script)),
                "instance_type": "local",
                "output_path": (tmp_path / "output").as_uri(),
                **options,
            }
        )

    return make
