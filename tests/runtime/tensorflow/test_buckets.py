# SPDX-License-Identifier: Apache-2.0
"""How gradients are packed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smdist.dataparallel.tensorflow.buckets import BucketTensor, pack

pieces = st.lists(
    st.builds(
        BucketTensor,
        dtype=st.sampled_from(["float32", "float16"]),
        size_bytes=st.none() | st.integers(0, 120),
    ),
    max_size=40,
)


def _bytes(bucket, all_pieces):
    return [all_pieces[number].size_bytes for number in bucket]


@given(pieces)
def test_every_piece_travels_once(all_pieces):
    flat = [number for bucket in pack(all_pieces, 100) for number in bucket]

    assert list(range(len(all_pieces))) == sorted(flat)


@given(pieces)
def test_a_bucket_is_of_one_dtype_and_fits(all_pieces):
    """Larger ones and those of unknown size are alone."""
    for bucket in pack(all_pieces, 100):
        sizes = _bytes(bucket, all_pieces)

        assert 1 == len({all_pieces[number].dtype for number in bucket})
        assert len(bucket) == 1 or sum(sizes) <= 100


@given(pieces)
def test_the_last_layers_travel_first(all_pieces):
    """Within a bucket, and buckets by the piece that completes them."""
    buckets = pack(all_pieces, 100)

    assert all(bucket == sorted(bucket, reverse=True) for bucket in buckets)
    last = [bucket[-1] for bucket in buckets]
    assert last == sorted(last, reverse=True)


@given(pieces)
def test_neighbours_of_a_dtype_would_not_fit_together(all_pieces):
    """No bucket is closed too early."""
    buckets = pack(all_pieces, 100)
    for dtype in ("float32", "float16"):
        mine = [_bytes(each, all_pieces) for each in buckets if all_pieces[each[0]].dtype == dtype]
        full = [sizes for sizes in mine if None not in sizes and sum(sizes) <= 100]
        for one, other in pairwise(full):
            assert sum(one) + other[0] > 100


@pytest.mark.parametrize("size", [None, 101])
def test_what_does_not_fit_leaves_the_open_bucket_open(size):
    odd = BucketTensor(dtype="float32", size_bytes=size)
    small = BucketTensor(dtype="float32", size_bytes=10)

    assert [[1], [2, 0]] == pack([small, odd, small], 100)


def test_the_first_buckets_of_a_dtype_are_small():
    """The sizes are 1 MiB, 2 MiB and so on; a tensor that is larger than its bucket is alone."""
    layers = [BucketTensor(dtype="float32", size_bytes=1 << 20)] * 9
    large = BucketTensor(dtype="float32", size_bytes=3 << 20)

    assert [[8], [7, 6], [5, 4, 3, 2], [1, 0]] == pack(layers, 4 << 20)
    assert [[8], [7, 6], [5, 4, 3], [2, 1, 0]] == pack(layers, 3 << 20)
    assert [[4], [3, 2], [1, 0]] == pack([*layers[:4], large], 4 << 20)
