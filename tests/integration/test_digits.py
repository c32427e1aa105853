# SPDX-License-Identifier: Apache-2.0
"""Training on real data, on two emulated hosts with two ranks each."""

import hashlib
import io
import signal
import tarfile
import time

import numpy as np
import pytest
import torch
from jobs import DIGITS, processes_of, ranks_of, wait_until

from sagemaker_dist import DataParallel, JobError

EPOCHS = {"epochs": 15}
ONE_EACH = {"distribution": DataParallel(processes_per_host=1)}
STEPS = 22  # of an epoch: 1,437 pictures in batches of 64


def read_tar(uri):
    with tarfile.open(uri.removeprefix("file://")) as tar:
        files = (member for member in tar.getmembers() if member.isfile())
        return {member.name: tar.extractfile(member).read() for member in files}


def weights_in(blob):
    return torch.load(io.BytesIO(blob))


@pytest.fixture(scope="module")
def trained(source, channel, tmp_path_factory):
    """Run one job of four ranks that saves every rank's weights."""
    from sagemaker_dist import PyTorch

    output = tmp_path_factory.mktemp("output")
    estimator = PyTorch(
        entry_point="dump.py",
        source_dir=str(source),
        instance_type="local_process",
        instance_count=2,
        distribution=DataParallel(processes_per_host=2),
        hyperparameters=EPOCHS,
        output_path=output.as_uri(),
    )
    estimator.fit({"training": channel})
    return estimator, output


@pytest.fixture(scope="module")
def rank_weights(trained):
    """Return the bytes of every rank's weights, in rank order."""
    estimator, output = trained
    files = read_tar(str(output / estimator.latest_training_job.name / "output/output.tar.gz"))
    return [weights_in(files[name]) for name in sorted(files) if "weights-" in name]


def test_model_loads_and_knows_the_digits(trained, channel):
    """model.tar.gz has the model, whose accuracy on the test pictures is at least 95 %."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("net", DIGITS / "source/net.py")
    net = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(net)
    model = net.build()
    model.load_state_dict(weights_in(read_tar(trained[0].model_data)["model.pt"]))
    test = np.load(channel.removeprefix("file://") + "/test.npz")
    right = model(torch.from_numpy(test["pictures"])).argmax(1) == torch.from_numpy(test["labels"])

    assert 0.95 <= right.float().mean().item()


def test_ranks_are_bitwise_equal(rank_weights):
    """Four ranks end with the same bits."""
    digests = {
        hashlib.sha256(b"".join(w[k].numpy().tobytes() for k in sorted(w))).hexdigest()
        for w in rank_weights
    }

    assert 4 == len(rank_weights)
    assert 1 == len(digests)


def test_four_ranks_train_what_one_process_trains(rank_weights, job, channel):
    """With the same global batches and SGD, the largest difference is below 1e-5."""
    alone = job(
        "train.py",
        instance_count=1,
        distribution=DataParallel(processes_per_host=1),
        hyperparameters=EPOCHS,
    )
    alone.fit({"training": channel})
    reference = weights_in(read_tar(alone.model_data)["model.pt"])
    differences = [(reference[k] - rank_weights[0][k]).abs().max().item() for k in reference]

    assert 1e-5 >= max(differences)


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_kill_9_of_a_rank_ends_the_job_with_its_name(job, victim, capfd):
    """fit() raises within 10 s, names host and rank, and no process is left."""
    estimator = job("forever.py", **ONE_EACH)
    estimator.fit(wait=False)
    name = estimator.latest_training_job.name
    log = estimator.latest_training_job
    runner = estimator.sagemaker_session.runner
    wait_until(lambda: "".join(runner.logs(name)).count("all ranks are at work") == 2)
    ranks_of(name, "forever.py")[victim].send_signal(signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(JobError) as caught:
        log.wait()

    assert 10 > time.monotonic() - start
    cause = caught.value.cause
    assert (f"algo-{victim + 1}", victim, 137) == (cause["host"], cause["rank"], cause["exit_code"])
    wait_until(lambda: not processes_of(name), seconds=2)


@pytest.mark.slow
def test_an_exception_is_the_failure_reason(job, capfd):
    """FailureReason has message, host and rank; the other ranks report the failed rank, too."""
    estimator = job("boom.py", **ONE_EACH)
    with pytest.raises(JobError):
        estimator.fit()
    described = estimator.latest_training_job.describe()
    cause = described["RootCause"]
    shown = capfd.readouterr()

    assert "boom" in described["FailureReason"]
    assert ("algo-2", 1, 1, "raised") == tuple(
        cause[name] for name in ("host", "rank", "culprit", "kind")
    )
    assert "DistBackendError: rank 1 on algo-2 raised ValueError: boom" in shown.out + shown.err


@pytest.mark.slow
def test_a_rank_of_another_host_that_leaves_is_named_first(job):
    """Its own launcher tells the other host's, which knows only of a lost connection."""
    estimator = job("boom.py", hyperparameters={"leave": ""}, **ONE_EACH)
    with pytest.raises(JobError) as caught:
        estimator.fit(logs=False)
    cause = caught.value.cause

    assert ("left", 1) == (cause["kind"], cause["culprit"])


@pytest.mark.slow
def test_stopped_ranks_agree_on_a_step_and_a_second_run_resumes(job, channel, tmp_path, capfd):
    """After SIGTERM there is one checkpoint, every launcher exits with 143, and the next run
    resumes.
    """
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    options = {"checkpoint_s3_uri": checkpoints.as_uri(), **ONE_EACH}
    first = job("train.py", hyperparameters={"epochs": 100_000}, **options)
    first.fit({"training": channel}, wait=False)
    wait_until((checkpoints / "checkpoint.pt").exists)
    first.latest_training_job.stop()
    wait_until(lambda: first.latest_training_job.describe()["TrainingJobStatus"] == "Stopped")
    log = "".join(first.sagemaker_session.runner.logs(first.latest_training_job.name))
    saved = torch.load(checkpoints / "checkpoint.pt")
    second = job("train.py", hyperparameters={"epochs": saved["step"] // STEPS + 1}, **options)
    second.fit({"training": channel})
    shown = capfd.readouterr()

    assert "[algo-1] stopped with status 143" in log
    assert "[algo-2] stopped with status 143" in log
    assert saved["step"] >= STEPS
    assert f"resuming after step {saved['step']}" in shown.out + shown.err
