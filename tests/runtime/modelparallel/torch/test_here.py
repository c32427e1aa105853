# SPDX-License-Identifier: Apache-2.0
"""Tests of the cluster that a number of ranks stands for."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.default_links import GPUS, PROCESSES
from smdist.modelparallel.torch.planning.local_cluster import cluster_of


def test_cluster_is_itself():
    cluster = Cluster(num_hosts=3)

    assert cluster is cluster_of(cluster, nn.Linear(2, 2))


@pytest.mark.parametrize("model", [nn.Linear(2, 2), nn.Linear(2, 2, device="meta"), nn.Identity()])
def test_ranks_are_processes_of_one_host(model):
    """A number of ranks is one host of processes, without GPU and memory limit."""
    found = cluster_of(4, model)

    assert Cluster(ranks_per_host=4, inside=PROCESSES, across=PROCESSES) == found


def test_ranks_are_gpus_like_the_models(monkeypatch):
    """Nine tenths of its memory; described by torch, which has none here."""
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda _: (0, 100 * 2**30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    model = nn.Linear(2, 2)
    on_gpu = SimpleNamespace(is_meta=False, device=torch.device("cuda", 0))
    monkeypatch.setattr(model, "parameters", lambda: iter([on_gpu]))
    found = cluster_of(8, model)

    assert (8, GPUS) == (found.ranks_per_host, found.inside)
    assert ("NVIDIA H200", 90 * 2**30) == (found.device.name, found.device.memory_bytes)


@pytest.mark.parametrize("world", [0, -1, True, 2.0, "2", None])
def test_what_is_no_world(world):
    with pytest.raises(OptionError) as caught:
        cluster_of(world, nn.Linear(2, 2))

    assert ("world",) == caught.value.about
