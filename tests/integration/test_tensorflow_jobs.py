# SPDX-License-Identifier: Apache-2.0
"""Whole jobs of TensorFlow on two emulated hosts: smdist's ranks, and TensorFlow's own
strategies.
"""

import io
import json
import signal
import tarfile
import time

import numpy as np
import psutil
import pytest
from jobs import ROOT, processes_of, wait_until

from sagemaker_dist import (
    DataParallel,
    JobError,
    ModelParallel,
    MultiWorkerMirroredStrategy,
    ParameterServer,
    PyTorch,
    TensorFlow,
)
from sagemaker_dist.jobs import TrainingJob

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def job(source, tmp_path):
    """Return a function that builds an estimator over two hosts."""

    def make(entry_point, distribution, **options):
        return TensorFlow(
            entry_point=entry_point,
            source_dir=str(source),
            instance_type="local_process",
            distribution=distribution,
            output_path=(tmp_path / "output").as_uri(),
            environment={"TF_CPP_MIN_LOG_LEVEL": "2"},
            **{"instance_count": 2, **options},
        )

    return make


def saved(estimator):
    """Return the values that the script wrote to the model's directory, by file."""
    with tarfile.open(estimator.model_data.removeprefix("file://")) as tar:
        files = [member for member in tar.getmembers() if member.isfile()]
        return {member.name: json.load(tar.extractfile(member)) for member in files}


def failure_of(estimator):
    with pytest.raises(JobError) as caught:
        estimator.fit()
    return caught.value


def test_two_ranks_on_each_of_two_hosts(job):
    """Each rank knows its rank and host, and TF_CONFIG is not set."""
    estimator = job("tf_ranks.py", DataParallel(processes_per_host=2))
    estimator.fit()
    found = [facts for _, facts in sorted(saved(estimator).items())]

    assert [("0", "0"), ("1", "1"), ("2", "0"), ("3", "1")] == [
        (facts["RANK"], facts["LOCAL_RANK"]) for facts in found
    ]
    assert [("4", "2", "127.0.0.1", None)] * 4 == [
        (facts["WORLD_SIZE"], facts["LOCAL_WORLD_SIZE"], facts["MASTER_ADDR"], facts["TF_CONFIG"])
        for facts in found
    ]


def test_a_keras_model_in_stages(job):
    """Two replicas of two stages train alike, and the job's model is one file of Keras's."""
    split = ModelParallel(
        pipeline_parallel_degree=2, microbatches=4, engine=DataParallel(processes_per_host=2)
    )
    estimator = job("keras_stages.py", split)
    estimator.fit()
    with tarfile.open(estimator.model_data.removeprefix("file://")) as tar:
        names = [member.name for member in tar.getmembers() if member.isfile()]
        ranks = sorted(name for name in names if name.endswith(".json"))
        facts = [json.load(tar.extractfile(name)) for name in ranks]

    assert "model.keras" in [name.rpartition("/")[2] for name in names]
    assert [[0, 0], [1, 0], [0, 1], [1, 1]] == [each["place"] for each in facts]
    assert 1 == len({str(each["loss"]) for each in facts})
    assert facts[0]["own"] == facts[2]["own"]
    assert not set(facts[0]["own"]) & set(facts[1]["own"])


def test_keras_fit_over_four_ranks(job, channel):
    """All ranks have bitwise the same weights, with an accuracy of at least 90 % on the test
    pictures.
    """
    estimator = job("tf_fit.py", DataParallel(processes_per_host=2))
    estimator.fit({"training": channel})
    with tarfile.open(estimator.model_data.removeprefix("file://")) as tar:
        files = {each.name: tar.extractfile(each) for each in tar.getmembers() if each.isfile()}
        ranks = {name: dict(np.load(io.BytesIO(file.read()))) for name, file in files.items()}
    first = ranks["rank0-of-4.npz"]

    assert {f"rank{rank}-of-4.npz" for rank in range(4)} == set(ranks)
    assert 0.9 <= first["accuracy"]
    for other in ranks.values():
        assert [first[name].tobytes() for name in sorted(first)] == [
            other[name].tobytes() for name in sorted(other)
        ]


@pytest.mark.slow
@pytest.mark.long
def test_the_notebooks_script_needs_no_model_dir(channel, tmp_path):
    """The script runs without --model_dir, which only the estimator passes."""
    job = TrainingJob(
        entry_point="train.py",
        source_dir=str(ROOT / "notebooks/keras_digits/source"),
        framework="tensorflow",
        instance_type="local_process",
        hyperparameters={"epochs": 1},
        inputs=channel,
        output_path=(tmp_path / "output").as_uri(),
    )
    job.submit()
    model = job.wait(progress=False)["ModelArtifacts"]["S3ModelArtifacts"]
    with tarfile.open(model.removeprefix("file://")) as tar:
        assert {"model-fit.keras", "weights-fit-0.npz"} <= set(tar.getnames())


@pytest.mark.slow
def test_ranks_that_torchrun_starts_meet_beside_its_store(source, channel, tmp_path):
    """Ranks that torchrun starts connect, as with a job file without a framework."""
    estimator = PyTorch(
        entry_point="tf_fit.py",
        source_dir=str(source),
        instance_type="local_process",
        instance_count=2,
        distribution=DataParallel(processes_per_host=1),
        output_path=(tmp_path / "output").as_uri(),
    )
    estimator.fit({"training": channel})
    with tarfile.open(estimator.model_data.removeprefix("file://")) as tar:
        assert {"rank0-of-2.npz", "rank1-of-2.npz"} <= set(tar.getnames())


@pytest.mark.slow
def test_a_rank_that_raises_in_fit_is_the_reason(job):
    """FailureReason is the rank's own error, not TensorFlow's graph error, and not another
    rank's.
    """
    error = failure_of(job("tf_boom.py", DataParallel(processes_per_host=1)))

    assert {
        "host": "algo-2",
        "rank": 1,
        "exit_code": 1,
        "kind": "raised",
        "culprit": 1,
        "exception": "InvalidArgumentError",
        "frame": "tf_boom.py:16 in records",
    }.items() <= error.cause.items()
    assert "InvalidArgumentError: ValueError: bad record 17 in shard 3 (" in str(error)


@pytest.mark.slow
def test_mirrored_workers_train_together(job):
    """Both hosts end with the same fitted line, from two replicas."""
    estimator = job("tf_mirrored.py", MultiWorkerMirroredStrategy())
    estimator.fit()
    found = saved(estimator)

    assert {"0.json", "1.json"} == set(found)
    assert found["0.json"] == found["1.json"]
    assert 2 == found["0.json"]["replicas"]
    assert (3.0, -1.0) == pytest.approx(
        (found["0.json"]["weight"], found["0.json"]["bias"]), abs=1e-3
    )


@pytest.mark.slow
@pytest.mark.long
def test_the_mirrored_strategy_of_one_host_needs_no_distribution(job):
    estimator = job("tf_mirrored.py", None, instance_count=1)
    estimator.fit()
    (found,) = saved(estimator).values()

    assert 2 == found["replicas"]
    assert (3.0, -1.0) == pytest.approx((found["weight"], found["bias"]), abs=1e-3)


@pytest.mark.slow
def test_parameter_servers_train_on_two_hosts(job):
    """The script runs once, the weights are on both hosts, and no server is left."""
    estimator = job("tf_servers.py", ParameterServer())
    estimator.fit()
    name = estimator.latest_training_job.name
    (found,) = saved(estimator).values()

    assert ["chief", 0] == found["task"]
    assert [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in (0, 1)] == found["where"]
    assert [1.0, 2.0, 3.0, 4.0] == pytest.approx(found["weights"], abs=1e-3)
    assert [] == processes_of(name)


@pytest.mark.slow
def test_a_chief_that_fails_is_the_reason(job):
    estimator = job("tf_servers.py", ParameterServer(), hyperparameters={"boom": "1"})
    error = failure_of(estimator)

    assert ("algo-1", 1) == (error.cause["host"], error.cause["exit_code"])
    assert error.cause["frame"].startswith("tf_servers.py:")
    assert "ValueError: boom" in str(error)


@pytest.mark.slow
def test_a_server_that_dies_ends_the_job(job):
    """A killed server ends the job, although TensorFlow's coordinator would wait for it forever."""
    estimator = job("tf_servers.py", ParameterServer(), hyperparameters={"wait": "1"})
    estimator.fit(wait=False)
    name = estimator.latest_training_job.name
    wait_until(lambda: _is_in_the_loop(name), 90)
    (worker,) = [each for each in processes_of(name) if _serves(each, "algo-2 worker 1")]
    worker.send_signal(signal.SIGKILL)
    killed = time.monotonic()

    with pytest.raises(JobError) as caught:
        estimator.latest_training_job.wait()

    assert time.monotonic() - killed < 30.0
    assert "algo-2" in str(caught.value)  # the starter on algo-1 is the cause, and names it
    assert [] == processes_of(name)


def _is_in_the_loop(name):
    """Return whether the chief has saved its first result."""
    for each in processes_of(name):
        try:
            base = each.environ().get("SM_MODEL_DIR", "/nowhere") + "/chief.json"
        except psutil.Error:
            continue
        try:
            with open(base, encoding="utf-8") as file:  # noqa: PTH123  # only whether it is there
                return bool(file.read())
        except OSError:
            continue
    return False


def _serves(process, task):
    """Return whether a process is the server itself, not its guard, whose command line has its
    name, too.
    """
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return task in command and "smdist.launch.rank_guard" not in command
