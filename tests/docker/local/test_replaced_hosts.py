# SPDX-License-Identifier: Apache-2.0
"""Containers that are killed or removed: with restarts another takes the host's place, and nothing
is lost; an elastic job goes on without it."""

import io
import tarfile

import pytest
import torch
from jobs import ROOT, wait_until

from sagemaker_dist import DataParallel
from sagemaker_dist.runners import TERMINAL
from sagemaker_dist.runners.local.containers.container_arguments import FOLDER_LABEL, HOST_LABEL

pytestmark = pytest.mark.timeout(900, func_only=True)
STEP = "smdist.checkpoint.step()"
SAVE_EVERY = 20


def host_of(engine, name):
    """The running container of a host."""
    (found,) = engine.containers.list(filters={"label": [FOLDER_LABEL, f"{HOST_LABEL}={name}"]})
    return found


def ended(estimator):
    """Wait for the end of the job, and return its description."""
    describe = estimator.latest_training_job.describe
    wait_until(lambda: describe()["TrainingJobStatus"] in TERMINAL, 300)
    return describe()


def log_of(estimator):
    name = estimator.latest_training_job.name
    return "".join(estimator.sagemaker_session.runner.logs(name))


def files_of(estimator):
    with tarfile.open(estimator.model_data.removeprefix("file://")) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {member.name: archive.extractfile(member).read() for member in members}


def weights_of(estimator):
    content = torch.load(io.BytesIO(files_of(estimator)["model.pt"]))
    return [value.numpy().tobytes() for value in content.values()]


@pytest.fixture
def resumable(job, tmp_path):
    """Makes a job of two hosts that trains the example; jobs of one name share checkpoints."""
    text = (ROOT / "docs/examples/resumable.py").read_text()
    assert STEP in text

    def make(name, pause):
        (tmp_path / name).mkdir()
        return job(
            text.replace(STEP, f"__import__('time').sleep({pause}); {STEP}"),
            instance_count=2,
            distribution=DataParallel(processes_per_host=1, max_restarts=3),
            hyperparameters={"steps": 200, "save-every": SAVE_EVERY},
            checkpoint_s3_uri=(tmp_path / name).as_uri(),
        )

    return make


def test_hosts_that_are_killed_and_removed_lose_nothing(resumable, engine, tmp_path):
    """`docker kill` of the second host, then `docker rm -f` of the first, which coordinates.

    Both have the address, the name and the secret of the one before; all ranks resume from the
    newest checkpoint, and the weights are those of a job that nothing has disturbed.
    """
    whole = resumable("whole", 0)
    whole.fit()
    killed = resumable("killed", 0.1)
    killed.fit(wait=False)
    checkpoint = tmp_path / "killed/checkpoint.pt"

    wait_until(checkpoint.exists, 240)
    host_of(engine, "algo-2").kill()
    done = torch.load(checkpoint)["done"]
    wait_until(lambda: torch.load(checkpoint)["done"] > done + SAVE_EVERY, 240)
    host_of(engine, "algo-1").remove(force=True)
    described = ended(killed)

    assert "Completed" == described["TrainingJobStatus"], log_of(killed)
    assert [("host", "algo-2"), ("host", "algo-1")] == [
        (each["kind"], each["host"]) for each in described["Restarts"]
    ]
    assert weights_of(whole) == weights_of(killed)
    assert "algo-1 is started again" in log_of(killed)


ELASTIC = """
    import os, time
    from pathlib import Path
    import torch
    import torch.distributed as dist
    import smdist.dataparallel.torch
    from smdist import elastic

    dist.init_process_group("smdist")
    model = torch.nn.Linear(2, 1)
    state = elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def train(state):
        size = dist.get_world_size()
        print("trains on", size, flush=True)
        for _ in range(6000 if size == 2 else 20):
            dist.all_reduce(torch.ones(1000))
            time.sleep(0.05)
        Path(os.environ["SM_MODEL_DIR"], "size").write_text(str(size))

    elastic.run(train, state)
"""


def test_an_elastic_job_goes_on_without_a_host_that_is_killed(job, engine):
    estimator = job(
        ELASTIC,
        instance_count=2,
        distribution=DataParallel(processes_per_host=1, elastic_min=1, silence_seconds=10),
    )
    estimator.fit(wait=False)
    wait_until(lambda: log_of(estimator).count("trains on 2") == 2, 240)
    host_of(engine, "algo-2").kill()
    described = ended(estimator)

    assert "Completed" == described["TrainingJobStatus"], log_of(estimator)
    assert {"size": b"1"} == files_of(estimator)
