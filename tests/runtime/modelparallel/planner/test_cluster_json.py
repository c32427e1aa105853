# SPDX-License-Identifier: Apache-2.0
"""A cluster as JSON: what the SDK writes is what the planner reads."""

import json

import pytest

from sagemaker_dist.catalog import training_instances
from sagemaker_dist.cli.split.cluster import cluster_of
from sagemaker_dist.errors import OptionError, dotted, parts_of
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.planner.cluster_json import read_cluster

CLUSTERS = [
    *(name for name, each in training_instances().items() if not each.is_neuron),
    "local_process",
]


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_instance_type_is_read(name):
    """Key by key the same as what the SDK says."""
    said = cluster_of(name, num_hosts=3)
    cluster = read_cluster(json.dumps(said.document()))

    assert (3, said.ranks_per_host) == (cluster.num_hosts, cluster.ranks_per_host)
    assert said.across.bytes_per_second == cluster.across.bytes_per_second
    assert said.inside.latency_seconds == cluster.inside.latency_seconds
    assert said.device.memory_bytes == cluster.device.memory_bytes
    assert said.device.flops_per_second == cluster.device.flops_per_second
    assert said.device.name == cluster.device.name


def test_defaults():
    """What is left out is as in Python."""
    assert Cluster() == read_cluster("{}")
    assert Cluster(num_hosts=2, inside=Link(latency_seconds=1e-5)) == read_cluster(
        '{"num_hosts": 2, "inside": {"latency_seconds": 1e-5}}'
    )
    assert Device() == read_cluster('{"device": {"memory_bytes": null}}').device


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("{", [("cluster", "not_json")]),
        ("[]", [("cluster", "type")]),
        ('{"hosts": 2}', [("cluster.hosts", "unknown")]),
        ('{"num_hosts": 0}', [("cluster.num_hosts", "option")]),
        ('{"num_hosts": true}', [("cluster.num_hosts", "option")]),
        ('{"num_hosts": 1.5}', [("cluster.num_hosts", "option")]),
        ('{"device": {"memory_bytes": "16GiB"}}', [("cluster.device.memory_bytes", "option")]),
        ('{"device": {"name": null}}', [("cluster.device.name", "option")]),
        ('{"inside": 3}', [("cluster.inside", "type")]),
        ('{"across": {"bytes_per_second": 0}}', [("cluster.across.bytes_per_second", "option")]),
        (
            '{"num_hosts": -1, "inside": {"speed": 1}}',
            [("cluster.num_hosts", "option"), ("cluster.inside.speed", "unknown")],
        ),
    ],
)
def test_faults(text, faults):
    """All at once, each with its place."""
    with pytest.raises(OptionError) as caught:
        read_cluster(text)

    assert faults == [(dotted(each.about), each.kind) for each in parts_of(caught.value)]


def test_an_error_says_where_the_value_stands():
    with pytest.raises(OptionError) as caught:
        read_cluster('{"device": {"memory_bytes": "16GiB"}}')

    assert (
        "--cluster, device, memory_bytes is '16GiB': it must be an integer of at least 1. Write an"
        " integer of at least 1, or leave the key out."
    ) == str(caught.value)
