# SPDX-License-Identifier: Apache-2.0
"""A model is split over ranks in containers of the sagemaker-dist images: torch's in both
spellings, and Keras's.
"""

import json
import tarfile
from pathlib import Path

import pytest

from sagemaker_dist import DataParallel, ModelParallel, SMPv1, TensorFlow

pytestmark = pytest.mark.timeout(400, func_only=True)
SOURCE = Path(__file__).parents[2] / "integration/source"
SCRIPT = SOURCE / "split.py"
ASKED = {
    "ours": ModelParallel(
        pipeline_parallel_degree=2, microbatches=2, engine=DataParallel(processes_per_host=2)
    ),
    "AWS's dict": SMPv1(
        pipeline_parallel_degree=2, microbatches=2, ddp=True, processes_per_host=2
    ).distribution(),
}


@pytest.mark.parametrize("spelling", ASKED)
def test_two_stages_on_each_of_two_hosts(job, spelling):
    """Each host is a replica; all ranks see the same loss, which falls."""
    estimator = job(SCRIPT.read_text(), instance_count=2, distribution=ASKED[spelling])
    estimator.fit()
    with tarfile.open(estimator.model_data.removeprefix("file://")) as model:
        ranks = [json.load(model.extractfile(f"rank-{rank}.json")) for rank in range(4)]
    losses = ranks[0]["losses"]

    assert [[0, 0], [1, 0], [0, 1], [1, 1]] == [rank["place"][:2] for rank in ranks]
    assert [losses] * 4 == [rank["losses"] for rank in ranks]
    assert losses[-1] < losses[0]
    assert [2] * 4 == [rank["microbatches"] for rank in ranks]


def test_a_keras_model_has_a_stage_on_each_host(tensorflow_image, tmp_path):
    """Each host has its own layers, both see the same loss, and one file has all layers."""
    estimator = TensorFlow(
        entry_point="keras_stages.py",
        source_dir=str(SOURCE),
        instance_type="local",
        instance_count=2,
        distribution=ModelParallel(
            pipeline_parallel_degree=2, microbatches=2, engine=DataParallel(processes_per_host=1)
        ),
        output_path=(tmp_path / "output").as_uri(),
        environment={"TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    estimator.fit()
    with tarfile.open(estimator.model_data.removeprefix("file://")) as model:
        first, second = (json.load(model.extractfile(f"rank-{rank}.json")) for rank in (0, 1))
        whole = model.extractfile("model.keras").read()
    names = {name.rpartition("/")[0] for name in first["own"] + second["own"]}

    assert [[0, 0], [1, 0]] == [first["place"], second["place"]]
    assert first["loss"] == second["loss"]
    assert first["loss"][-1] < first["loss"][0]
    assert {"first", "second", "head"} == names
    assert not set(first["own"]) & set(second["own"])
    assert whole.startswith(b"PK")  # a Keras file is a zip file
