# SPDX-License-Identifier: Apache-2.0
"""Whole jobs lose nothing: not to a rank or a host that is killed, not to an interruption.

The weights have the same bits as those of a run that nothing has disturbed. CI runs two of the
four scripts, `make resumable-jobs` all.
"""

import io
import os
import shutil
import tarfile
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
import torch
from jobs import ROOT, processes_of, ranks_of, wait_until
from safetensors.torch import load

from sagemaker_dist import DataParallel, ModelParallel, PyTorch, TensorFlow
from sagemaker_dist.runners import TERMINAL, LocalRunner

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.long]
RANKS = DataParallel(processes_per_host=1, max_restarts=2)
SPLIT = ModelParallel(pipeline_parallel_degree=2, microbatches=2, engine=RANKS)
STEP = "smdist.checkpoint.step()"
JOBS = {  # script -> estimator, distribution, what it calls first after each step
    "resumable.py": (PyTorch, RANKS, STEP),
    "trainer.py": (PyTorch, RANKS, "smdist.checkpoint.should_stop()"),
    "tf_resumable.py": (TensorFlow, RANKS, STEP),
    "split_resumable.py": (PyTorch, SPLIT, STEP),
}
IS_WHOLE = os.environ.get("SMDIST_TEST_RESUMABLE_JOBS") == "all"  # `make resumable-jobs`
SAMPLE = ["resumable.py", "split_resumable.py"]


@pytest.fixture(params=list(JOBS) if IS_WHOLE else SAMPLE)
def job(request, source, tmp_path):
    """Return a function that builds an estimator; jobs of one name share their checkpoints."""
    for example in (ROOT / "docs/examples").glob("*.py"):
        shutil.copy(example, source)
    script, (kind, distribution, step) = source / request.param, JOBS[request.param]
    text = script.read_text()
    assert step in text
    pause = "__import__('time').sleep(float(__import__('os').environ['PAUSE']))"
    script.write_text(text.replace(step, f"({pause}, {step})[1]", 1))
    made = []

    def make(name, pause=0.04):  # seconds after each step: enough for what happens to the job
        (tmp_path / name).mkdir(exist_ok=True)
        estimator = kind(
            entry_point=request.param,
            source_dir=str(source),
            instance_type="local_process",
            instance_count=2,
            distribution=distribution,
            hyperparameters={"steps": 400, "save-every": 25},
            output_path=(tmp_path / "output").as_uri(),
            checkpoint_s3_uri=(tmp_path / name).as_uri(),
            environment={
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "OMP_NUM_THREADS": "1",
                "PAUSE": str(pause),
            },
        )
        estimator.script, estimator.checkpoints = request.param, tmp_path / name
        made.append(estimator)
        return estimator

    yield make
    runner = LocalRunner()
    for estimator in made:
        started = estimator.latest_training_job
        if started and runner.describe(started.name)["TrainingJobStatus"] not in TERMINAL:
            runner.stop(started.name, now=True)


def weights(estimator):
    """Return the bytes of all weights of the model."""
    with tarfile.open(estimator.model_data.removeprefix("file://")) as tar:
        (member,) = [each for each in tar.getmembers() if each.name.startswith("model.")]
        content = io.BytesIO(tar.extractfile(member).read())
    if member.name.endswith(".npz"):
        with np.load(content) as saved:
            return [saved[name].tobytes() for name in sorted(saved)]
    loaded = load(content.read()) if member.name.endswith(".safetensors") else torch.load(content)
    return [value.numpy().tobytes() for _, value in sorted(loaded.items())]


def start(estimator):
    """Start a job, and wait until it has saved a checkpoint; its name and its ranks."""
    began = time.time()
    estimator.fit(wait=False)
    name = estimator.latest_training_job.name
    wait_until(lambda: _has_saved(estimator.checkpoints, began), 180)
    return name, ranks_of(name, estimator.script)


def _has_saved(checkpoints, began):
    for each in checkpoints.glob("*"):
        with suppress(FileNotFoundError):  # an old one, removed meanwhile
            if each.stat().st_mtime > began:
                return True
    return False


def finished(estimator):
    """Wait for the end of the job, and return its description."""

    def describe():
        return estimator.latest_training_job.describe()

    wait_until(lambda: describe()["TrainingJobStatus"] in TERMINAL, 300)
    return describe()


def kill_host(name, address):
    """Kill all processes of a host, the launcher first: no guard reports the end of its rank."""
    for process in sorted(processes_of(name), key=lambda each: each.create_time()):
        try:
            if process.environ().get("CURRENT_HOST") == address:
                process.kill()
        except psutil.Error:
            continue


def test_nothing_is_lost(job):
    """A job is interrupted; the next one goes on, loses a rank, then a host, and completes."""
    whole = job("whole", pause=0)
    whole.fit()

    stopped = job("disturbed")
    start(stopped)
    stopped.latest_training_job.stop()

    assert "Stopped" == finished(stopped)["TrainingJobStatus"]

    killed = job("disturbed")
    name, ranks = start(killed)
    began = time.monotonic()
    ranks[1].kill()
    again = wait_until(
        lambda: (
            {0, 1} <= (found := ranks_of(name, killed.script)).keys()
            and found[0].pid != ranks[0].pid
            and found
        ),
        180,
    )
    seconds = time.monotonic() - began
    kill_host(name, again[1].environ()["CURRENT_HOST"])
    described = finished(killed)

    assert "Completed" == described["TrainingJobStatus"], described.get("FailureReason")
    assert ["signal", "host"] == [each["kind"] for each in described["Restarts"]]
    assert weights(whole) == weights(killed)
    print(f"{killed.script}: ranks started again after {seconds:.1f} s")
