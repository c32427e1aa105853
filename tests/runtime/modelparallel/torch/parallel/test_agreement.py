# SPDX-License-Identifier: Apache-2.0
"""What ranks compare before a step says the same for the same batch, and else differs."""

import numpy as np
import pytest
import torch

from smdist.modelparallel.torch.program.pytree import checksum, described

BATCH = {"x": torch.ones(2, 3), "n": 1, "of": object()}


def test_batches_are_described_by_shapes_types_and_values_that_are_no_tensors():
    array, names = np.zeros((2, 1), np.int8), {"b", "a"}

    assert "x torch.float32[2, 3]; n 1; of object" == described(BATCH)
    assert "0 int8[2, 1]; 1 set of [\"'a'\", \"'b'\"]" == described((array, names))
    assert described(np.float32(1)) != described(np.float32(2))
    assert described(torch.int8) != described(torch.int16)


def test_equal_numbers_have_equal_checksums():
    assert checksum(BATCH) == checksum({"x": torch.ones(2, 3), "n": 2})
    assert checksum(torch.arange(6).reshape(2, 3).T) == checksum(torch.tensor([0, 3, 1, 4, 2, 5]))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0000002])),
        (torch.tensor([True]), torch.tensor([False])),
        (torch.tensor([1j]), torch.tensor([2j])),
        (torch.tensor([1j]), torch.tensor([1j]).conj()),
        (torch.arange(6), torch.arange(6).flip(0)),
        (np.arange(6), np.arange(6)[::-1]),
        (torch.eye(2).to_sparse(), torch.eye(2).flip(0).to_sparse()),
    ],
)
def test_other_numbers_and_another_order_have_other_checksums(one, other):
    assert checksum({"x": one}) != checksum({"x": other})


def test_every_type_of_tensor_has_one():
    for dtype in (torch.bfloat16, torch.float64, torch.int8, torch.complex128, torch.float8_e5m2):
        assert checksum(torch.ones(3).to(dtype))
    assert checksum(torch.empty(0)) == checksum(torch.tensor([]))
    assert checksum(torch.tensor(1.0)) != checksum(torch.tensor(2.0))
