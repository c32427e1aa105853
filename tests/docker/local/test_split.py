# SPDX-License-Identifier: Apache-2.0
"""A model is split over ranks in containers of the sagemaker-dist image, in both spellings."""

import json
import tarfile
from pathlib import Path

import pytest

from sagemaker_dist import DataParallel, ModelParallel, SMPv1

pytestmark = pytest.mark.timeout(180, func_only=True)
SCRIPT = Path(__file__).parents[2] / "integration/source/split.py"
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
