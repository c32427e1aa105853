# SPDX-License-Identifier: Apache-2.0
"""Batches, how they are cut, and sizes as people write them."""

from collections import namedtuple

import pytest
import torch

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.planning.plan_request import read_size
from smdist.modelparallel.torch.program.batch import Batch

Pair = namedtuple("Pair", "x y")


def test_microbatch_of_everything_that_a_batch_may_be():
    """Tensors are cut along dimension 0, wherever they are; all else stays as it is."""
    x, y, scale = torch.arange(8), torch.ones(8, 3), torch.tensor(2.0)

    assert torch.equal(x[:2], Batch.of(x).microbatch(4))
    first, second, flag = Batch.of((x, {"y": [y, scale]}, True)).microbatch(2)
    assert (4, (4, 3), True) == (len(first), tuple(second["y"][0].shape), flag)
    assert second["y"][1] is scale
    named = Batch.of({"pair": Pair(x, y)}).microbatch(8)["pair"]
    assert Pair is type(named)
    assert [0] == named.x.tolist()


def test_microbatch_of_meta():
    """No values are needed."""
    part = Batch.of({"x": torch.zeros(6, 2, device="meta")}).microbatch(3)["x"]

    assert (2, 2) == part.shape
    assert part.is_meta


@pytest.mark.parametrize("number", [0, 3, 5, 16])
def test_what_does_not_divide_is_refused(number):
    with pytest.raises(OptionError) as caught:
        Batch.of(torch.zeros(8)).microbatch(number)

    assert (("microbatches",), "indivisible") == (caught.value.about, caught.value.kind)


@pytest.mark.parametrize(
    "example",
    [
        [torch.zeros(2)],
        None,
        {"x": 3},
        (torch.tensor(1.0),),
        torch.zeros(0, 3),
        {0: torch.zeros(4)},
    ],
)
def test_example_that_is_no_batch_is_refused(example):
    with pytest.raises(OptionError) as caught:
        Batch.of(example)

    assert ("example",) == caught.value.about


def test_tensors_of_different_lengths_are_listed():
    with pytest.raises(OptionError) as caught:
        Batch.of((torch.zeros(4), {"mask": torch.zeros(1, 4)}))

    assert (
        "example has tensors with different lengths of dimension 0 "
        "(example[0]: 4, example[1]['mask']: 1): a batch is split into microbatches along "
        "dimension 0 of all its tensors. Pass only tensors with the same length of dimension 0."
    ) == str(caught.value)


@pytest.mark.parametrize(
    ("written", "size"),
    [(1, 1), ("1", 1), ("16GiB", 2**34), (" 16 gib ", 2**34), ("1.5 GB", 1_500_000_000)],
)
def test_sizes(written, size):
    assert size == read_size(written, "device_memory")


@pytest.mark.parametrize("written", [0, -1, True, None, 1.5, "", "16 gigs", "-1GiB", "GiB", "0GiB"])
def test_what_is_no_size(written):
    with pytest.raises(OptionError) as caught:
        read_size(written, "device_memory")

    assert ("device_memory",) == caught.value.about
