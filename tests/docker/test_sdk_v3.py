# SPDX-License-Identifier: Apache-2.0
"""SageMaker's own SDK v3, unmodified, runs the image in its local container mode.

It shares its name with v2 and lives in an environment of its own, build/venv-v3, which
the first test makes. `sagemaker-train` is the part of v3 that holds the ModelTrainer.
"""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from boxes import hosts_of, run_sdk_job, sdk_job, status_of, until_there
from jobs import wait_until

pytestmark = pytest.mark.timeout(600)  # the first test makes an environment and the image
JOB = Path(__file__).parent / "source/v3_job.py"
VENV = Path(__file__).parents[2] / "build/venv-v3"
PACKAGE = "sagemaker-train==1.27.0"  # of sagemaker 3.27.0


@pytest.fixture(scope="session")
def python():
    """Python of the environment; made once, and anew for another version."""
    made = VENV / PACKAGE
    if not made.exists():
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True, timeout=60)
        pip = [VENV / "bin/python", "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--quiet", PACKAGE], check=True, timeout=400)
        made.touch()
    return VENV / "bin/python"


@pytest.fixture
def train(python, image, tmp_path):
    """Train; what the files of the model hold, by name."""

    def run(hosts, kind):
        run_sdk_job(python, JOB, tmp_path, image.name, str(tmp_path), str(hosts), kind, "train.py")
        model = sorted((tmp_path / "root").glob("*/artifacts/model/*.json"))
        return {path.name: json.loads(path.read_text()) for path in model}

    return run


def test_one_host_runs_a_plain_process(train):
    model = train(1, "plain")

    assert ["plain-1.json"] == list(model)
    assert ["--epochs", "3"] == model["plain-1.json"]["argv"]


def test_torchrun_of_two_hosts_finds_the_backend(train):
    """`distributed=Torchrun()` and a script that imports the backend: nothing else of ours."""
    model = train(2, "torchrun")

    assert [f"rank-{rank}.json" for rank in range(4)] == list(model)
    assert 4 * [4.0] == [facts["sum"] for facts in model.values()]


def test_stop_reaches_the_ranks(engine, python, image, tmp_path):
    """Through bash, SageMaker's drivers and torchrun: each rank saves and the host ends soon."""
    arguments = (image.name, str(tmp_path), "1", "torchrun", "saves.py")
    with sdk_job(python, JOB, tmp_path, *arguments):
        [host] = wait_until(lambda: hosts_of(engine, tmp_path))
        model = tmp_path / "root" / host.labels["com.docker.compose.project"] / "model"
        for rank in (0, 1):
            until_there(model / f"rank-{rank}-ready", host)
        asked = time.monotonic()
        host.stop(timeout=60)
        seconds = time.monotonic() - asked

        assert 143 == status_of(host)
        assert ["rank-0-saved", "rank-1-saved"] == sorted(p.name for p in model.glob("*-saved"))
        assert seconds < 8.0
