# SPDX-License-Identifier: Apache-2.0
"""The planner behind `sagemaker-dist advise model.py`: one capture, one layout for each cluster."""

import json
import sys
from textwrap import dedent

import pytest

from sagemaker_dist.cli import main
from sagemaker_dist.errors import OptionError
from smdist.modelparallel.planner.compare_clusters import compare

MODEL = """
    import torch
    from torch import nn
    def model():
        return nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
    def example():
        return torch.zeros(16, 256)
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
    """The command finds layouts of a real model; the picture and the front have them."""
    plot = tmp_path / "front.svg"
    arguments = ["advise", str(model_file), "--samples=1e6", "--instance-type=ml.g5.48xlarge"]
    status = main([*arguments, "--counts=1,2", f"--plot={plot}", "--json"])
    document = json.loads(capsys.readouterr().out)

    assert 0 == status, document
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
