# SPDX-License-Identifier: Apache-2.0
"""SageMaker's own SDK v3, unmodified, runs the image in its local container mode.

It shares its name with v2 and lives in an environment of its own, build/venv-v3, which
`make` makes. `sagemaker-train` is the part of v3 that holds the ModelTrainer.
"""

import json
import subprocess
import time
from pathlib import Path

import pytest
from boxes import hosts_of, run_sdk_job, sdk_job, status_of, until_there
from jobs import wait_until

pytestmark = pytest.mark.timeout(600)  # the first test makes an environment and the image
JOB = Path(__file__).parent / "source/v3_job.py"
ROOT = Path(__file__).parents[2]
AWKWARD = {  # what a shell would run, end at, or take for something else
    "text": 'it\'s "q"; touch /tmp/ran $(touch /tmp/ran) `id`',
    "a.b-c": "two\nlines",
    "note": "héllo 😀",
    "learning_rate": "1e-3",
    "flag": True,
    "nested": {"it's": [1, None]},
    "n": 3,
}


@pytest.fixture(scope="session")
def python():
    """Python of the environment; `make` does nothing where it is there."""
    make = ["make", "--silent", "build/venv-v3/.made"]
    subprocess.run(make, cwd=ROOT, check=True, timeout=500)
    return ROOT / "build/venv-v3/bin/python"


@pytest.fixture
def train(python, image, tmp_path):
    """Train; what the files of the model hold, by name."""

    def run(hosts, kind, hyperparameters=None):
        (tmp_path / "hyperparameters.json").write_text(json.dumps(hyperparameters))
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


def test_ours_runs_ranks_of_two_hosts(train, tmp_path):
    """`distributed=DataParallelConfig()`: no shell reads a hyperparameter or a channel's name."""
    model = train(2, "ours", AWKWARD)
    log = (tmp_path / "job.log").read_text(errors="replace")

    assert [f"rank-{rank}.json" for rank in range(4)] == list(model)
    assert 4 * [4.0] == [facts["sum"] for facts in model.values()]
    for facts in model.values():
        arguments = dict(zip(facts["argv"][::2], facts["argv"][1::2], strict=True))
        assert [f"--{name}" for name in AWKWARD] == list(arguments)
        assert {"--text": AWKWARD["text"], "--flag": "true", "--learning_rate": "1e-3"} == {
            name: arguments[name] for name in ("--text", "--flag", "--learning_rate")
        }
        assert ("two\nlines", "héllo 😀") == (arguments["--a.b-c"], arguments["--note"])
        assert AWKWARD["nested"] == json.loads(arguments["--nested"])
        assert AWKWARD | {"learning_rate": 0.001} == facts["hyperparameters"]
        assert "/opt/ml/input/data/code" == facts["cwd"]
    assert "Requirement already satisfied: numpy" in log
    assert "Starting training script" not in log


def test_sm_train_ends_in_our_launcher(train, tmp_path):
    """SMDIST_TAKE_OVER=off, or an image that knows nothing of this: the driver makes way."""
    model = train(2, "ours-in-theirs", {"n": 3, "text": "plain"})
    log = (tmp_path / "job.log").read_text(errors="replace")

    assert 4 * [4.0] == [facts["sum"] for facts in model.values()]
    assert 4 * [["--n", "3", "--text", "plain"]] == [facts["argv"] for facts in model.values()]
    assert "Running DataParallelConfig Driver" in log
    assert 2 == log.count("Requirement already satisfied: numpy in")


def test_failure_is_the_ranks_own(python, image, tmp_path):
    """Not a traceback of SageMaker's driver; the job ends with the rank's status."""
    (tmp_path / "hyperparameters.json").write_text("{}")
    arguments = (image.name, str(tmp_path), "1", "ours", "fails.py")
    with sdk_job(python, JOB, tmp_path, *arguments) as job:
        job.wait(150)
    [failure] = (tmp_path / "root").glob("*/artifacts/output/failure")

    assert "algo-1 rank 1 exited with code 1: ValueError: boom" in failure.read_text()


@pytest.mark.parametrize("kind", ["torchrun", "ours"])
def test_stop_reaches_the_ranks(engine, python, image, tmp_path, kind):
    """Through bash, SageMaker's drivers and torchrun: each rank saves and the host ends soon."""
    (tmp_path / "hyperparameters.json").write_text("{}")
    arguments = (image.name, str(tmp_path), "1", kind, "saves.py")
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
        assert seconds < 30  # SIGKILL comes after 60
