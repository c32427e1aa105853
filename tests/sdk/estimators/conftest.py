# SPDX-License-Identifier: Apache-2.0
"""Our package imports SageMaker's SDK first, and so without its advice to leave version 2."""

import pytest

import sagemaker_dist.estimators  # noqa: F401 - for what the import does
from sagemaker_dist import DataParallel, PyTorch


@pytest.fixture
def estimator(script, tmp_path):
    """Builds an estimator of two hosts, with what a test changes."""

    def build(**changes):
        arguments = {
            "entry_point": "train.py",
            "source_dir": str(tmp_path / "src"),
            "instance_type": "local_process",
            "instance_count": 2,
            "distribution": DataParallel(processes_per_host=2),
        }
        return PyTorch(**{**arguments, **changes})

    return build
