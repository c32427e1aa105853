# SPDX-License-Identifier: Apache-2.0
"""Jobs of TensorFlow in containers: the image is found, weights, strategies, a rank that dies."""

import io
import json
import sys
import tarfile

import numpy as np
import pytest
from jobs import DIGITS, ROOT

from sagemaker_dist import (
    DataParallel,
    JobError,
    MultiWorkerMirroredStrategy,
    ParameterServer,
    TensorFlow,
)

pytestmark = pytest.mark.timeout(400, func_only=True)
DEMO = ROOT / "notebooks/keras_digits/source"
SCRIPTS = ROOT / "tests/integration/source"
TWO_RANKS = DataParallel(processes_per_host=2)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}


@pytest.fixture
def tensorflow_job(tensorflow_image, tmp_path):
    """Makes an estimator over two hosts; nobody tells it which image to take."""

    def make(entry_point, distribution, **options):
        return TensorFlow(
            entry_point=entry_point,
            distribution=distribution,
            instance_count=2,
            output_path=(tmp_path / "output").as_uri(),
            environment=QUIET,
            **{"instance_type": "local", "source_dir": str(SCRIPTS), **options},
        )

    return make


@pytest.fixture
def channel(tmp_path):
    """The digits as a file:// channel."""
    sys.path.insert(0, str(DIGITS))
    from data import write_digits

    sys.path.remove(str(DIGITS))
    return write_digits(tmp_path / "data").as_uri()


def model_of(estimator):
    """The files of its model."""
    with tarfile.open(estimator.model_data.removeprefix("file://")) as archive:
        files = (member for member in archive.getmembers() if member.isfile())
        return {member.name: archive.extractfile(member).read() for member in files}


def weights_of(files):
    """Every rank's weights, byte for byte."""
    loaded = {name: np.load(io.BytesIO(data)) for name, data in files.items() if ".npz" in name}
    return {
        name: [weights[each].tobytes() for each in weights.files]
        for name, weights in loaded.items()
    }


def test_processes_and_containers_fit_the_same_bits(tensorflow_job, channel):
    """Keras `fit` on two hosts with two ranks each: one set of weights, on all ranks of both."""
    weights = {}
    for kind in ("local_process", "local"):
        estimator = tensorflow_job(
            "train.py",
            TWO_RANKS,
            instance_type=kind,
            source_dir=str(DEMO),
            hyperparameters={"epochs": 2},
        )
        estimator.fit({"training": channel})
        weights[kind] = weights_of(model_of(estimator))
    first = weights["local"]["weights-fit-0.npz"]

    assert 4 == len(first)  # two layers, their kernels and biases
    assert {f"weights-fit-{rank}.npz": first for rank in range(4)} == weights["local"]
    assert weights["local_process"] == weights["local"]


def test_parameter_servers_in_containers(tensorflow_job):
    """Each host's servers are found by its name; both hosts hold a part of the weights."""
    estimator = tensorflow_job("tf_servers.py", ParameterServer())
    estimator.fit()
    found = json.loads(model_of(estimator)["chief.json"])

    assert [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in (0, 1)] == found["where"]
    assert [1.0, 2.0, 3.0, 4.0] == pytest.approx(found["weights"], abs=1e-3)


def test_mirrored_workers_in_containers(tensorflow_job):
    """Both hosts end with the same line."""
    estimator = tensorflow_job("tf_mirrored.py", MultiWorkerMirroredStrategy())
    estimator.fit()
    first, second = (json.loads(model_of(estimator)[f"{rank}.json"]) for rank in (0, 1))

    assert first == second
    assert (3.0, -1.0) == pytest.approx((first["weight"], first["bias"]), abs=1e-3)


def test_a_rank_that_dies_is_named_with_its_host(tensorflow_job, tmp_path):
    """Killed between two sums; the others' errors come after it."""
    (tmp_path / "dies.py").write_text(
        "import os, signal\n"
        "import tensorflow as tf\n"
        "import smdist.dataparallel.tensorflow as sdp\n"
        "sdp.init()\n"
        "for step in range(1_000_000):\n"
        "    if (sdp.rank(), step) == (1, 100):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    sdp.allreduce(tf.ones(1000), op=sdp.Sum)\n"
    )
    estimator = tensorflow_job(
        "dies.py", DataParallel(processes_per_host=1), source_dir=str(tmp_path)
    )
    with pytest.raises(JobError) as caught:
        estimator.fit()

    cause = caught.value.cause
    assert ("algo-2", 1, 137) == (cause["host"], cause["rank"], cause["exit_code"])
