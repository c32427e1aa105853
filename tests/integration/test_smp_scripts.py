# SPDX-License-Identifier: Apache-2.0
"""Scripts like AWS's examples for SMP v1, with its dict: they train, save and resume."""

import importlib.util
import json
import tarfile
from pathlib import Path

import pytest
import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from sagemaker_dist import PyTorch

pytestmark = pytest.mark.timeout(600)  # each test runs several jobs
SOURCE = Path(__file__).with_name("source") / "smp"
DISTRIBUTION = {
    "smdistributed": {
        "modelparallel": {
            "enabled": True,
            "parameters": {
                "partitions": 2,
                "microbatches": 4,
                "pipeline": "interleaved",
                "optimize": "speed",
                "placement_strategy": "spread",
                "ddp": True,
            },
        }
    },
    "mpi": {"enabled": True, "processes_per_host": 2},
}


@pytest.fixture
def run(tmp_path):
    """Run a script on two ranks, and return each rank's report."""

    def run(script, inputs=None, **hyperparameters):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        estimator = PyTorch(
            entry_point=script,
            source_dir=str(SOURCE),
            instance_type="local_process",
            instance_count=1,
            distribution=DISTRIBUTION,
            hyperparameters=hyperparameters,
            output_path=(tmp_path / "output").as_uri(),
            checkpoint_s3_uri=(tmp_path / "checkpoints").as_uri(),
        )
        estimator.fit(inputs)
        name = estimator.latest_training_job.name
        return reports(tmp_path / "output" / name / "output" / "output.tar.gz")

    return run


def reports(path):
    with tarfile.open(path) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}
    return [json.loads(files[name]) for name in sorted(files) if "report-" in name]


def plain_losses(channel, epochs):
    """Return the losses of the same training in one process, with whole batches and without
    smdist.
    """
    spec = importlib.util.spec_from_file_location("pictures", SOURCE / "pictures.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    torch.manual_seed(1)
    model = script.Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    dataset = script.dataset(Path(channel.removeprefix("file://")) / "train.npz")
    for _ in range(epochs):
        for pictures, labels in DataLoader(dataset, 48, drop_last=True):
            optimizer.zero_grad()
            loss = functional.nll_loss(model(pictures), labels)
            loss.backward()
            optimizer.step()
            yield loss.item()
        scheduler.step()


@pytest.mark.slow
def test_pictures_train_save_and_resume(run, channel):
    """Two epochs, a full checkpoint and a third epoch have the losses of plain PyTorch."""
    inputs = {"training": channel}
    first = run("pictures.py", inputs=inputs, epochs=2, partial=0)
    then = run("pictures.py", inputs=inputs, epochs=3, partial=0)
    expected = list(plain_losses(channel, 3))

    assert [2, 1] == [len(first[0]["tests"]), len(then[0]["tests"])]
    assert expected == pytest.approx(first[0]["losses"] + then[0]["losses"], abs=1e-3)
    assert first[0] == first[1]
    assert then[0] == then[1]
    assert 0.9 < then[0]["tests"][-1][1]


@pytest.mark.slow
@pytest.mark.long
def test_sentences_resume_as_if_they_had_never_stopped(run):
    """A GPT-2 with dropout: a partial checkpoint after 4 of 8 steps and 4 more steps equal the 8
    steps of the run that saved it.
    """
    whole = run("sentences.py", **{"max-steps": 8})
    then = run("sentences.py", **{"max-steps": 8, "load-tag": "total_steps4"})

    assert 4 == then[0]["start"]
    assert whole[0]["losses"][4:] == then[0]["losses"]
    assert whole[0]["evaluation"] == then[0]["evaluation"]
    assert whole[0] == whole[1]
    assert whole[0]["losses"][0] > whole[0]["evaluation"]
