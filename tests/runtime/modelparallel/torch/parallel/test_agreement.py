# SPDX-License-Identifier: Apache-2.0
"""What ranks compare before a step says the same for the same batch, and else differs."""

import torch

from smdist.modelparallel.torch.parallel.agreement import checksum, described

BATCH = {"x": torch.ones(2, 3), "n": 1, "of": object()}


def test_batches_are_described_by_shapes_types_and_values_that_are_no_tensors():
    assert "x torch.float32[2, 3]; n 1; of object" == described(BATCH)


def test_equal_numbers_have_equal_checksums():
    assert checksum(BATCH) == checksum({"x": torch.ones(2, 3)})


def test_other_numbers_have_other_checksums():
    base = checksum(torch.tensor([1.0, 2.0]))

    assert base != checksum(torch.tensor([1.0, 2.0000002]))
    assert checksum(torch.tensor([True])) != checksum(torch.tensor([False]))
    assert checksum(torch.tensor([1j])) != checksum(torch.tensor([2j]))


def test_every_type_of_tensor_has_one():
    for dtype in (torch.bfloat16, torch.float64, torch.int8, torch.complex128, torch.float8_e5m2):
        assert checksum(torch.ones(3).to(dtype))
    assert "0" == checksum(torch.empty(0))
