# SPDX-License-Identifier: Apache-2.0
"""Speed of float32 products: published for some GPUs, assumed for others, and none for CPUs."""

import pytest

from smdist.modelparallel.core.cluster import Device
from smdist.modelparallel.core.layout.float32_speed import float32_assumption, float32_slowdown


@pytest.mark.parametrize(
    ("name", "flops", "times"),
    [
        ("NVIDIA A100", 312e12, 16),
        ("NVIDIA A100", 19.5e12, 1),
        ("NVIDIA A100", 1e12, 1),
        ("NVIDIA A100", None, 1),
        ("NVIDIA H100", 67e13, 10),
        ("NVIDIA A10G", 70e12, 8),
        ("cpu", 1e12, 1),
    ],
)
def test_slowdown(name, flops, times):
    """A peak that is float32's already is not divided again."""
    assert pytest.approx(times) == float32_slowdown(Device(name=name, flops_per_second=flops))


def test_source_and_assumption_are_named():
    """Published figures have their source, others are called an assumption."""
    known = float32_assumption(Device(name="NVIDIA A100", flops_per_second=312e12))
    other = float32_assumption(Device(name="NVIDIA A10G", flops_per_second=70e12))

    assert "2.0 times as long with TF32 and 16.0 times without" in known
    assert "read 2026-11-27" in known
    assert "by assumption up to 8 times" in other
