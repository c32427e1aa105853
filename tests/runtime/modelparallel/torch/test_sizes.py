# SPDX-License-Identifier: Apache-2.0
"""Bytes as people write them, and what is none."""

import pytest

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.planning.plan_request import read_size


def test_sizes_are_read():
    assert 16 * 2**30 == read_size("16GiB", "device_memory")
    assert 1_500_000_000 == read_size("1.5 GB", "device_memory")
    assert 7 == read_size(7, "device_memory")


@pytest.mark.parametrize(
    "size", ["9" * 400, "9" * 40 + "TiB", 10**400, "16Gb", "1e9", "", 0, -1, True]
)
def test_what_is_no_size_is_refused(size):
    """Also numbers that no machine has: they are slips."""
    with pytest.raises(OptionError) as error:
        read_size(size, "device_memory")

    assert ("device_memory",) == error.value.about
    assert len(str(error.value)) < 200
