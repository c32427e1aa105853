# SPDX-License-Identifier: Apache-2.0
"""Requests for a partition that cannot be met, and how to fix them."""

import pytest
from split_graphs import chain, costs

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.partition import assigned, partition


def refusal(*args, **options):
    with pytest.raises(OptionError) as error:
        partition(*args, **options)
    return error.value


def test_more_stages_than_units():
    fault = refusal(*chain(1, 1, 1), num_stages=5)

    assert (("num_stages",), "too_many_stages") == (fault.about, fault.kind)


def test_a_device_that_is_too_small():
    """The least that would do is true, and stage and unit are named."""
    net, _ = chain(1, 1, 1, 1)
    prices = costs(saved={"u0": 10, "u1": 20, "u2": 500, "u3": 30})
    fault = refusal(
        net, prices, num_stages=2, device_bytes=400, in_flight=[2, 1], state=StateBytes(weight=1)
    )

    assert (
        "device_bytes is 400: Net does not fit in the memory of 2 ranks, because it needs at least "
        "556 bytes on the fullest rank. This rank has stage 1 ('u2' to 'u3'). The module 'u2' "
        "alone needs 513 bytes. Pass "
        "device_bytes of at least 556, use more stages, keep fewer microbatches in flight, or "
        "divide 'u2' into smaller modules." == str(fault)
    )
    assert (("device_bytes",), "memory", 556) == (fault.about, fault.kind, fault.least_bytes)
    assert (556,) == partition(
        net,
        prices,
        num_stages=2,
        device_bytes=556,
        in_flight=[2, 1],
        state=StateBytes(weight=1),
    ).peak_bytes[1:]


def test_all_faults_come_at_once():
    fault = refusal(
        *chain(1, 1),
        num_stages=3,
        device_bytes=0,
        in_flight=[1, 0],
        rank_of=[0, 2, 2],
        memory_weight=2,
        optimize="sped",
    )

    assert [
        ("in_flight",),
        ("in_flight",),
        ("rank_of",),
        ("device_bytes",),
        ("memory_weight",),
        ("optimize",),
        ("num_stages",),
    ] == [each.about for each in fault.faults]
    assert "unknown" == fault.faults[5].kind


@pytest.mark.parametrize("number", [0, -1, 1.5, True, None])
def test_stages_are_counted(number):
    assert ("num_stages",) == refusal(*chain(1, 1), num_stages=number).about


def test_hand_made_stages_are_checked_as_well():
    net, prices = chain(1, 1)
    with pytest.raises(OptionError) as error:
        assigned(net, prices, {"u0": 0, "u1": 0}, num_stages=2)

    assert ("num_stages",) == error.value.about
