# SPDX-License-Identifier: Apache-2.0
"""Speeds of a calibration file in predictions of layouts."""

import pytest

from smdist.modelparallel.core.calibration import (
    Calibration,
    Disturbance,
    MachineFacts,
    MessageTime,
    ProductSpeed,
)
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.layout.measured_machine import measured_machine

ACROSS = Link(latency_seconds=1e-4, bytes_per_second=1e8)


def machine(device, disturbance=None):
    facts = MachineFacts(
        processor="P", num_cores=2, memory_bytes=1 << 30, device=device, device_name="D",
        num_devices=1, num_threads=1,
    )  # fmt: skip
    dtype = "float32" if device == "cpu" else "bfloat16"
    measured = Calibration(
        date="2026-11-27", machine=facts, versions={},
        products=(
            ProductSpeed(dtype=dtype, size=1024, flops_per_second=4e10),
            ProductSpeed(dtype=dtype, size=128, flops_per_second=1e10),
            ProductSpeed(dtype="float16", size=128, flops_per_second=3e10),
        ),
        memory_bytes_per_second=5e9, all_reduce=(), folders=(),
        messages=(
            MessageTime(num_bytes=1_000, seconds=1e-5),
            MessageTime(num_bytes=100_000, seconds=1.1e-4),
            MessageTime(num_bytes=10_000_000, seconds=5.01e-3),
        ),
        disturbance=disturbance,
    )  # fmt: skip
    cluster = Cluster(
        num_hosts=2, ranks_per_host=2, across=ACROSS,
        device=Device(name="D", memory_bytes=1 << 30, flops_per_second=1e15),
    )  # fmt: skip
    return measured_machine(measured.applied_to(cluster), measured)


def test_speeds_are_those_that_were_measured():
    cpu = machine("cpu")

    assert 4e10 == cpu.flops_per_second
    assert 0.25 == cpu.product_efficiency(128)
    assert 1 == cpu.product_efficiency(4096)
    assert (5e9, 1.0) == (cpu.bytes_per_second, cpu.memory)
    assert pytest.approx(2e9) == cpu.cluster.inside.bytes_per_second
    assert pytest.approx(0.5) == cpu.link.at(100_000)
    assert pytest.approx(1) == cpu.link.at(10_000_000)
    assert ACROSS == cpu.cluster.across
    assert () == cpu.assumptions()


def test_messages_between_gpus_are_assumed_since_they_are_not_measured():
    gpu = machine("cuda")

    assert not gpu.link.is_measured
    assert 0.25 == gpu.product_efficiency(128)
    assert ["Messages"] == [each.partition(":")[0] for each in gpu.assumptions()]


@pytest.mark.parametrize(("share", "spread"), [(0.05, 0.15), (0.5, 0.65), (1.0, 0.9)])
def test_ranges_are_wider_if_others_disturbed_the_measurement(share, spread):
    found = machine("cpu", Disturbance(busy_share=share, repeat_spread=0.0))

    assert pytest.approx(spread) == found.spread
    assert (share > 0.1) == any("other programs" in each for each in found.assumptions())
