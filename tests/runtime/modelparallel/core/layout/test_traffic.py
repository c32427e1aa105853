# SPDX-License-Identifier: Apache-2.0
"""Traffic of a device's memory beside the layers: optimizer, sums of gradients, and copies."""

from dataclasses import replace

import pytest

from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.layout import Layer, Layout, Machine, TrainingNeeds
from smdist.modelparallel.core.layout.layer_costs import layer_cost
from smdist.modelparallel.core.layout.machine_speed import Curve
from smdist.modelparallel.core.layout.step_time import stage_time
from smdist.modelparallel.core.layout.training_needs import PRECISIONS

ELEMENTS, BYTES_PER_SECOND = 1000, 1e6
MACHINE = Machine(
    cluster=Cluster(
        num_hosts=2,
        device=Device(name="cpu", flops_per_second=1e9, bytes_per_second=BYTES_PER_SECOND),
        across=Link(latency_seconds=0.0, bytes_per_second=1e30),  # messages take no time
    ),
    memory=1.0,
    overlaps=False,
)


def stage(precision="float32", **layout):
    """Times of one layer of two replicas that computes nothing, so that all else is seen."""
    fields = {"data": 2, "num_microbatches": 1, "microbatch": 1, **layout}
    layer = Layer(name="layer", num_parameters=ELEMENTS)
    cost = layer_cost(MACHINE, layer, 1, 1, "none", False)
    needs = TrainingNeeds(
        batch_per_replica=fields["num_microbatches"],
        precision=PRECISIONS[precision],
        reduction="auto",
    )
    return stage_time(MACHINE, [cost], Layout(**fields), needs)


def exposed(parameters, bytes_per_second):
    """Seconds of all-reduces after a backward pass of 1 s for each MiB of the layers."""
    link = Link(latency_seconds=0.0, bytes_per_second=bytes_per_second)
    even = Curve(points=((1.0, 1.0),), source="as fast for each size")
    device = replace(MACHINE.cluster.device, bytes_per_second=1e30)
    cluster = replace(MACHINE.cluster, across=link, device=device)
    machine = replace(MACHINE, cluster=cluster, link=even, overlaps=True)
    layers = [
        Layer(name="layer", num_parameters=mib << 18, backward_seconds=mib) for mib in parameters
    ]
    costs = [layer_cost(machine, layer, 1, 1, "none", False) for layer in layers]
    needs = TrainingNeeds(batch_per_replica=1, precision=PRECISIONS["float32"], reduction="auto")
    return stage_time(machine, costs, Layout(data=2, microbatch=1), needs).exposed


def of_bytes(seconds):
    """Bytes of each parameter that were read and written."""
    return seconds * BYTES_PER_SECOND / ELEMENTS


def test_adam_reads_or_writes_18_values_of_each_parameter():
    shards = {"sharding": "full", "shard_degree": 2}

    assert pytest.approx(18 * 4) == of_bytes(stage().updated)
    assert pytest.approx(18 * 4 / 2) == of_bytes(stage(**shards).updated)


def test_each_later_microbatch_adds_its_gradients_to_the_sum():
    """The mean over microbatches: two values are read and one is written, but not by the first."""
    assert 0 == stage().backward
    assert pytest.approx(3 * 4 / 2) == of_bytes(stage(num_microbatches=2).backward)
    assert pytest.approx(3 * 4 * 3 / 4) == of_bytes(stage(num_microbatches=4).backward)


def test_gradients_are_copied_to_the_buffers_of_all_reduces():
    assert pytest.approx(2 * 4) == of_bytes(stage().reduced)
    assert 0 == stage(data=1).reduced


def test_the_network_begins_with_the_last_layer_and_ends_with_the_first():
    """A MiB of the 20 takes 2 s on the slow network, and a tenth of a second on the fast one."""
    slow, fast = 2**20 / 2, 2**20 * 10

    assert pytest.approx(2 + 40 - 20) == exposed((2, 16, 2), slow)
    assert pytest.approx(16 + 40 - 20) == exposed((2, 2, 16), slow)
    assert pytest.approx(0.2) == exposed((2, 16, 2), fast)
    assert pytest.approx(1.6) == exposed((16, 2, 2), fast)


def test_gathered_weights_and_reduced_gradients_are_copied():
    """Weights are gathered for each pass; the gradients are reduced in the backward pass."""
    shards = {"sharding": "full", "shard_degree": 2, "reduction": "microbatch"}
    found = stage("bfloat16", **shards)

    assert pytest.approx(2 * 2) == of_bytes(found.forward)
    assert pytest.approx(2 * 2 + 2 * 4) == of_bytes(found.backward)
