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
    return str(error.value)


def test_more_stages_than_units():
    assert (
        "num_stages is 5: Net has 3 units to put on stages. Use at most 3 stages, "
        "or open modules into finer units." == refusal(*chain(1, 1, 1), num_stages=5)
    )


def test_a_device_that_is_too_small():
    """The least that would do is true, and stage and unit are named."""
    net, _ = chain(1, 1, 1, 1)
    prices = costs(saved={"u0": 10, "u1": 20, "u2": 500, "u3": 30})
    text = refusal(
        net, prices, num_stages=2, device_bytes=400, in_flight=[2, 1], state=StateBytes(weight=1)
    )

    assert (
        "device_bytes is 400: Net does not fit on 2 ranks of that size: the least that would do is "
        "556 bytes, for stage 1 ('u2' to 'u3'), of which 'u2' alone holds 513. Allow 556 bytes, "
        "use more stages, keep fewer microbatches in flight, or open 'u2' into finer units." == text
    )
    assert (556,) == partition(
        net,
        prices,
        num_stages=2,
        device_bytes=556,
        in_flight=[2, 1],
        state=StateBytes(weight=1),
    ).peak_bytes[1:]


def test_all_faults_come_at_once():
    text = refusal(
        *chain(1, 1),
        num_stages=3,
        device_bytes=0,
        in_flight=[1, 0],
        rank_of=[0, 2, 2],
        memory_weight=2,
        optimize="sped",
    )

    assert "7 faults" in text
    for part in (
        "device_bytes is 0",
        "in_flight has 2 numbers: there are 3 stages",
        "in_flight has 0",
        "rank_of is [0, 2, 2]: ranks are numbered from 0",
        "memory_weight is 2",
        "optimize is 'sped': it stands for a memory_weight. Did you mean 'speed'?",
        "num_stages is 3: Net has 2 units",
    ):
        assert part in text


@pytest.mark.parametrize("number", [0, -1, 1.5, True, None])
def test_stages_are_counted(number):
    assert f"num_stages is {number!r}: a pipeline has stages" in refusal(
        *chain(1, 1), num_stages=number
    )


def test_hand_made_stages_are_checked_as_well():
    net, prices = chain(1, 1)
    with pytest.raises(OptionError, match="stage 1 has no unit"):
        assigned(net, prices, {"u0": 0, "u1": 0}, num_stages=2)
