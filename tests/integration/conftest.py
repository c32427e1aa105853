# SPDX-License-Identifier: Apache-2.0
"""Fixtures of whole jobs through the public API: real launchers, torchrun, ranks and data."""

import shutil
import sys
from pathlib import Path

import pytest
from jobs import DIGITS

from sagemaker_dist import DataParallel, PyTorch


@pytest.fixture(scope="session")
def channel(tmp_path_factory):
    """Write the digits and return their file:// URI."""
    sys.path.insert(0, str(DIGITS))
    from data import write_digits

    sys.path.remove(str(DIGITS))
    return write_digits(tmp_path_factory.mktemp("channel")).as_uri()


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """Return a source directory with the demo's script and the tests' scripts."""
    folder = tmp_path_factory.mktemp("source")
    for part in (DIGITS / "source", Path(__file__).with_name("source")):
        shutil.copytree(part, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture
def job(source, tmp_path):
    """Return a function that builds an estimator over two hosts with two ranks each."""

    def make(entry_point, **options):
        settings = {
            "instance_count": 2,
            "distribution": DataParallel(processes_per_host=2),
            "output_path": (tmp_path / "output").as_uri(),
            **options,
        }
        return PyTorch(
            entry_point=entry_point,
            source_dir=str(source),
            instance_type="local_process",
            **settings,
        )

    return make
