# SPDX-License-Identifier: Apache-2.0
"""A whole step's gradients over all ranks: dense ones in fusion buffers, sparse ones gathered.

Which gradients are None and which are sparse has to be the same on all ranks; where some
are, that goes along with the first buffer and is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any
from zlib import crc32

from smdist.dataparallel.tensorflow import sparse
from smdist.dataparallel.tensorflow.library import tf
from smdist.dataparallel.tensorflow.reducing import Reduction, all_reduce

_DENSE, _SPARSE, _NONE = "dsn"


def reduce_gradients(
    gradients: Sequence[Any],
    sources: Sequence[Any],
    reduction: Reduction,
    sparse_as_dense: bool = False,
) -> list[Any]:
    """Gradients over all ranks, each in its place; None stays None.

    Args:
        gradients: In the order of layers: the last ones travel first.
        sources: What each is the gradient of: its shape holds where the gradient's is unknown.

    Raises:
        tf.errors.InvalidArgumentError: Ranks disagree on shapes, Nones or sparseness.
    """
    known = [
        _known(gradient, source, sparse_as_dense)
        for gradient, source in zip(gradients, sources, strict=True)
    ]
    kinds = "".join(_kind(gradient) for gradient in known)
    dense = [gradient for gradient in known if _kind(gradient) == _DENSE]
    slices = [gradient for gradient in known if _kind(gradient) == _SPARSE]
    whole: dict[str, Iterator[Any]] = {
        _DENSE: iter(_reduce_dense(dense, kinds, reduction)),
        _SPARSE: iter(sparse.gather(slices, reduction) if slices else ()),
        _NONE: repeat(None),
    }
    return [next(whole[kind]) for kind in kinds]


def _reduce_dense(dense: list[Any], kinds: str, reduction: Reduction) -> list[Any]:
    if set(kinds) <= {_DENSE}:
        return all_reduce(dense, reduction)
    mark = crc32(kinds.encode()) >> 1 or 1  # a dimension that fits into 31 bits
    return all_reduce(dense or [tf.zeros([1])], reduction, mark)


def _kind(gradient: Any) -> str:
    if gradient is None:
        return _NONE
    return _SPARSE if sparse.is_sparse(gradient) else _DENSE


def _known(gradient: Any, source: Any, sparse_as_dense: bool) -> Any:
    if gradient is None:
        return None
    if sparse.is_sparse(gradient):
        return sparse.as_dense(gradient) if sparse_as_dense else gradient
    gradient = tf.convert_to_tensor(gradient)
    shape = getattr(source, "shape", None)
    if gradient.shape.is_fully_defined() or shape is None:
        return gradient
    return tf.ensure_shape(gradient, shape)
