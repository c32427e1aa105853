# SPDX-License-Identifier: Apache-2.0
"""A model that is split over the ranks of a whole job."""

import json
import tarfile
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from sagemaker_dist import DataParallel, ModelParallel, OptionError, SMPv1

pytestmark = pytest.mark.timeout(120)
SCRIPT = Path(__file__).with_name("source") / "split.py"
RANKS = DataParallel(processes_per_host=2)
OURS = ModelParallel(pipeline_parallel_degree=2, microbatches=2, global_batch_size=8, engine=RANKS)
AWS = SMPv1(pipeline_parallel_degree=2, microbatches=2, ddp=True, processes_per_host=2)


def facts_in(model):
    """Return the facts that every rank wrote, in rank order."""
    with tarfile.open(model.removeprefix("file://")) as tar:
        return [json.load(tar.extractfile(f"rank-{rank}.json")) for rank in range(4)]


@pytest.fixture(scope="module")
def plain():
    """Return the losses of one process on the global batches."""
    spec = spec_from_file_location("split_of_tests", SCRIPT)
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    model = script.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for inputs, targets in script.batches():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def options(request, tmp_path):
    """Return our options, or AWS's dict with its parameters in a file."""
    if request.param == "ours":
        return OURS
    spelt = AWS.distribution()
    path = tmp_path / "smp.json"
    path.write_text(json.dumps(spelt["smdistributed"]["modelparallel"]["parameters"]))
    section = {"enabled": True, "parameters": str(path)}
    return {**spelt, "smdistributed": {"modelparallel": section}}


@pytest.mark.parametrize(
    "options", ["ours", pytest.param("AWS's", marks=pytest.mark.slow)], indirect=True
)
def test_two_stages_and_two_replicas_train_what_one_process_trains(job, plain, options):
    """The losses equal one process's; every rank knows its stage, replica and options."""
    estimator = job("split.py", distribution=options)
    estimator.fit()
    ranks = facts_in(estimator.model_data)

    assert [[0, 0, 2, 2], [1, 0, 2, 2], [0, 1, 2, 2], [1, 1, 2, 2]] == [r["place"] for r in ranks]
    for rank in ranks:
        assert plain == pytest.approx(rank["losses"], abs=1e-6)
        assert 2 == rank["microbatches"] == rank["options"]["microbatches"]
        assert asdict(RANKS) == rank["options"]["engine"]
    if options is OURS:
        assert OURS == ModelParallel(**ranks[0]["options"])


@pytest.mark.slow
def test_split_layers_and_two_replicas_train_what_one_process_trains(job, plain):
    """Layers are split over the two ranks of a host; the losses equal one process's."""
    split = ModelParallel(tensor_parallel_degree=2, microbatches=2, engine=RANKS)
    estimator = job("split.py", distribution=split)
    estimator.fit()
    ranks = facts_in(estimator.model_data)

    assert [[0, 0, 1, 2], [0, 0, 1, 2], [0, 1, 1, 2], [0, 1, 1, 2]] == [r["place"] for r in ranks]
    assert split == ModelParallel(**ranks[0]["options"])
    for rank in ranks:
        assert plain == pytest.approx(rank["losses"], abs=1e-6)


def test_what_does_not_fit_starts_nothing(job):
    """3 hosts of 2 ranks are refused for 4 stages: 6 ranks are no multiple of 4."""
    options = ModelParallel(pipeline_parallel_degree=4, engine=RANKS)
    with pytest.raises(OptionError) as caught:
        job("split.py", distribution=options, instance_count=3)

    assert ("pipeline_parallel_degree",) == caught.value.about
