# SPDX-License-Identifier: Apache-2.0
"""The planner behind `sagemaker-dist advise model.py`: one capture, one layout for each cluster."""

import json
import sys
from textwrap import dedent

import pytest

from sagemaker_dist.cli import main
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.calibration import (
    Calibration,
    MachineFacts,
    MessageTime,
    ProductSpeed,
    save,
)
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.layout import Machine
from smdist.modelparallel.planner.cluster_json import read_cluster
from smdist.modelparallel.planner.compare_clusters import compare
from smdist.modelparallel.planner.model_file import ModelFile
from smdist.modelparallel.torch.planning import split_variants
from smdist.modelparallel.torch.planning.layout_plan import plan_with_layout

MODEL = """
    import torch
    from torch import nn
    def model():
        return nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    def example():
        return torch.zeros(16, 256)
    """
WIDE = """
    import torch
    from torch import nn
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.wide, self.narrow = nn.Linear(32, 16384), nn.Linear(16384, 32)
        def forward(self, x):
            return self.narrow(torch.relu(self.wide(x)))
    def model():
        return Net()
    def example():
        return torch.zeros(4, 32)
    """
DEVICE = {"memory_bytes": 1 << 30, "flops_per_second": 1e12, "bytes_per_second": 1e11}


@pytest.fixture
def model_file(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    path = tmp_path / "model.py"
    path.write_text(dedent(MODEL))
    return path


def request(file, *clusters, global_batch=None):
    return {
        "file": str(file),
        "clusters": list(clusters),
        "global_batch": global_batch,
        "precision": "float32",
    }


def test_report_and_picture(capsys, tmp_path, model_file):
    """The command finds layouts of a real model; people who wait see each cluster."""
    plot = tmp_path / "front.svg"
    arguments = ["advise", str(model_file), "--samples=1e6", "--instance-type=ml.g5.48xlarge"]
    status = main([*arguments, "--counts=1,2", f"--plot={plot}", "--json"])
    out, err = capsys.readouterr()
    document = json.loads(out)

    assert 0 == status, document
    assert "Sequential is recorded" in err
    assert "2 of 2 clusters compared: 2 x 8 NVIDIA A10G" in err
    one, two = document["offers"]
    assert (1, 2) == (one["candidate"]["num_hosts"], two["candidate"]["num_hosts"])
    assert one["layout"]["memory_bytes"] < one["candidate"]["cluster"]["device"]["memory_bytes"]
    assert document["choice"] in document["front"]
    assert plot.read_text().startswith("<svg")


def test_one_result_for_each_cluster(model_file):
    """Faster devices take less time; a cluster that is too small has an error."""
    fast = {**DEVICE, "flops_per_second": 1e13, "bytes_per_second": 1e12}
    tiny = {**DEVICE, "memory_bytes": 1 << 16}
    clusters = [{"ranks_per_host": 2, "device": each} for each in (DEVICE, fast, tiny)]
    answer = compare(request(model_file, *clusters))
    slow, quick, full = answer["results"]

    assert 4 * (256 * 256 + 256) == answer["parameters"]
    assert 16 == answer["batch_per_replica"]
    assert quick["step_seconds"] < slow["step_seconds"]
    assert slow["low_seconds"] < slow["step_seconds"] < slow["high_seconds"]
    assert full["error"]["least_bytes"] > tiny["memory_bytes"]


def test_global_batch(model_file):
    """A global batch is the same on every cluster."""
    clusters = [{"ranks_per_host": count, "device": DEVICE} for count in (1, 2, 4)]
    answer = compare(request(model_file, *clusters, global_batch=24))

    assert [24, 24, 24] == [each["samples"] for each in answer["results"]]


def test_broken_model_file(model_file):
    """An error of the model file is the user's, not one of each cluster."""
    model_file.write_text("x = 1")

    with pytest.raises(OptionError):
        compare(request(model_file, {"device": DEVICE}))


@pytest.mark.parametrize(
    ("ranks", "memory_bytes", "expected"),
    [
        (1, 1 << 30, {"sharding": None, "gradient_reduction": None}),
        (4, 2_050_000, {"sharding": "full", "gradient_reduction": "microbatch"}),
    ],
)
def test_layout_and_its_prediction_are_those_of_the_plan(model_file, ranks, memory_bytes, expected):
    """The same search: gradients may be reduced in each microbatch; weights are read in each."""
    cluster = {"ranks_per_host": ranks, "device": {**DEVICE, "memory_bytes": memory_bytes}}
    (found,) = compare(request(model_file, cluster))["results"]
    file = ModelFile(model_file)
    machine = Machine(cluster=read_cluster(json.dumps(cluster)))
    model, batch = file.model(with_values=False), file.example("cpu")
    made = plan_with_layout(model, batch, machine, costs="estimate", state=StateBytes())
    best = made.search.best

    assert str(best.layout) == found["layout"]
    assert expected == {name: found["options"].get(name) for name in expected}
    assert pytest.approx(best.step_seconds) == found["step_seconds"]
    assert pytest.approx(best.memory.total) == found["memory_bytes"]


def test_batch_of_one_sample(model_file):
    """A second recording has the sample twice, so that larger global batches are not 16 times."""
    whole = compare(request(model_file, {"device": DEVICE}, global_batch=16))["results"][0]
    model_file.write_text(model_file.read_text().replace("zeros(16,", "zeros(1,"))
    single = compare(request(model_file, {"device": DEVICE}, global_batch=16))["results"][0]

    assert 16 == single["samples"]
    assert pytest.approx(whole["step_seconds"], rel=0.01) == single["step_seconds"]
    assert pytest.approx(whole["memory_bytes"], rel=0.01) == single["memory_bytes"]


def test_float32_widens_the_range(model_file):
    """Times are those of 16 bits; a float32 model without autocast is slower, by a known factor."""
    device = {**DEVICE, "name": "NVIDIA A100", "flops_per_second": 312e12}
    asked = request(model_file, {"device": device})
    single, half = compare(asked), compare({**asked, "precision": "bfloat16"})
    slow, fast = single["results"][0], half["results"][0]
    computed = slow["seconds"]["compute"]

    assert pytest.approx(1.25 * (slow["step_seconds"] + 15 * computed)) == slow["high_seconds"]
    assert pytest.approx(1.25 * fast["step_seconds"]) == fast["high_seconds"]
    assert any("float32" in each and "16.0 times" in each for each in single["assumptions"])
    assert not any("float32" in each for each in half["assumptions"])


def test_measured_speeds_count_for_the_measured_clusters_alone(model_file, tmp_path):
    """The second cluster has the measured speed, ten times that of the first, and its own range."""
    facts = MachineFacts(
        processor="P", num_cores=1, memory_bytes=1, device="cuda", device_name="D",
        num_devices=2, num_threads=1,
    )  # fmt: skip
    products = (ProductSpeed(dtype="bfloat16", size=64, flops_per_second=1e13),)
    messages = tuple(MessageTime(num_bytes=size, seconds=size / 1e9) for size in (1, 1000))
    measured = Calibration(
        date="2026-11-27", machine=facts, versions={}, products=products,
        memory_bytes_per_second=1e12, all_reduce=(), messages=messages, folders=(),
    )  # fmt: skip
    save(measured, tmp_path / "speeds.json")
    given = request(model_file, *[{"ranks_per_host": 2, "device": DEVICE}] * 2)
    given |= {"calibration": str(tmp_path / "speeds.json"), "calibrated": [1]}
    published, own = compare(given)["results"]

    assert own["seconds"]["compute"] < 0.2 * published["seconds"]["compute"]
    assert pytest.approx(0.75) == published["low_seconds"] / published["step_seconds"]
    assert pytest.approx(0.85) == own["low_seconds"] / own["step_seconds"]


def test_splits_are_proved_only_where_they_can_save_time(model_file, monkeypatch):
    """Where whole layers compute nearly all the time, the answer says why they stay whole."""
    monkeypatch.setattr(split_variants, "copies_for", None)  # a call would fail
    slow = {"ranks_per_host": 2, "device": {**DEVICE, "flops_per_second": 1e9}}
    answer = compare(request(model_file, slow))

    assert "tensor_parallel_degree" not in answer["results"][0]["options"]
    assert any(each.startswith("Layers stay whole on clusters") for each in answer["assumptions"])


def test_layers_are_split_over_the_ranks_of_a_host(tmp_path, monkeypatch):
    """Where neither the state nor the activations of one sample fit on a rank, layers are split."""
    monkeypatch.setattr("sys.path", list(sys.path))
    path = tmp_path / "wide.py"
    path.write_text(dedent(WIDE))
    device = {**DEVICE, "name": "NVIDIA A10G"}
    small, large = (
        compare(request(path, {"ranks_per_host": 2, "device": {**device, "memory_bytes": size}}))
        for size in (12 << 20, 1 << 30)
    )

    assert 2 == small["results"][0]["options"]["tensor_parallel_degree"]
    assert "tensor_parallel_degree" not in large["results"][0]["options"]
