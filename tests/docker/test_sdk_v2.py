# SPDX-License-Identifier: Apache-2.0
"""SageMaker's own SDK v2, unmodified, runs the image in its local mode."""

import json
import sys
import tarfile
from pathlib import Path

import pytest
from boxes import run_sdk_job

from sagemaker_dist.contract import KEY, DataParallel, render

pytestmark = pytest.mark.timeout(600)  # the first test that wants the image builds it
JOB = Path(__file__).parent / "source/v2_job.py"


@pytest.fixture
def train(image, tmp_path):
    """Train on two hosts; what the files of the model hold, by name."""

    def run(hyperparameters):
        arguments = (image.name, str(tmp_path), "2", json.dumps(hyperparameters))
        run_sdk_job(sys.executable, JOB, tmp_path, *arguments)
        with tarfile.open(tmp_path / "model/model.tar.gz") as model:
            return {name: json.load(model.extractfile(name)) for name in sorted(model.getnames())}

    return run


def test_ranks_of_two_hosts_sum(train):
    """A hyperparameter is all it takes: two hosts, two ranks each, the backend "smdist"."""
    options = DataParallel(processes_per_host=2)
    model = train({KEY: render(options), "epochs": 3, "name": "a b"})

    assert [f"rank-{rank}.json" for rank in range(4)] == list(model)
    for rank in range(4):
        facts = model[f"rank-{rank}.json"]
        assert (rank, 4, 4.0) == (facts["rank"], facts["world"], facts["sum"])
        assert facts["host"].startswith(f"algo-{rank // 2 + 1}-")
        assert ["--epochs", "3", "--name", "a b"] == facts["argv"]


def test_without_options_hosts_are_alone(train):
    """One plain process on each host, as in SageMaker's own images."""
    model = train({"epochs": 3})

    assert ["plain-1.json", "plain-2.json"] == list(model)
    assert all(["--epochs", "3"] == facts["argv"] for facts in model.values())
