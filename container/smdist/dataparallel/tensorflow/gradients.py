# SPDX-License-Identifier: Apache-2.0
"""A whole step's gradients over all ranks: dense ones in fusion buffers, sparse ones gathered.

Which gradients are None, which are sparse, and the names of their variables have to be the
same on all ranks: they go along with the first buffer and are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from smdist.dataparallel.tensorflow import omissions, sparse
from smdist.dataparallel.tensorflow.agreement import mark_of, names_of
from smdist.dataparallel.tensorflow.library import tf
from smdist.dataparallel.tensorflow.reducing import Reduction, all_reduce

_DENSE, _SPARSE, _NONE = "dsn"


def reduce_gradients(
    gradients: Sequence[Any],
    sources: Sequence[Any],
    reduction: Reduction,
    sparse_as_dense: bool = False,
    beside: str = "",
) -> list[Any]:
    """Gradients over all ranks, each in its place; None stays None.

    Args:
        gradients: In the order of layers: the last ones travel first.
        sources: What each is the gradient of: its shape holds where the gradient's is unknown,
            and names of variables are compared between ranks (agreement.py).
        beside: What else ranks have to agree on.

    Raises:
        tf.errors.InvalidArgumentError: Ranks disagree on shapes, Nones, sparseness, names of
            variables or what is `beside`.
    """
    omissions.note(omissions.GRADIENTS)
    known = [
        _known(gradient, source, sparse_as_dense)
        for gradient, source in zip(gradients, sources, strict=True)
    ]
    kinds = "".join(_kind(gradient) for gradient in known)
    agreed = described(known, sources) + beside
    dense = [gradient for gradient in known if _kind(gradient) == _DENSE]
    slices = [gradient for gradient in known if _kind(gradient) == _SPARSE]
    whole: dict[str, Iterator[Any]] = {
        _DENSE: iter(_reduce_dense(dense, agreed, reduction)),
        _SPARSE: map(sparse.united, sparse.gather(slices, reduction) if slices else ()),
        _NONE: repeat(None),
    }
    return [next(whole[kind]) for kind in kinds]


def described(gradients: Sequence[Any], sources: Sequence[Any]) -> str:
    """What is None, what is sparse, and of which variables; "" where nothing is to be said."""
    kinds = "".join(_kind(gradient) for gradient in gradients)
    names = names_of(sources)
    is_plain = set(kinds) <= {_DENSE} and not any(names)
    return "" if is_plain else "\n".join([kinds, *names])


def _reduce_dense(dense: list[Any], agreed: str, reduction: Reduction) -> list[Any]:
    if not agreed:
        return all_reduce(dense, reduction)
    return all_reduce(dense or [tf.zeros([1])], reduction, mark_of(agreed))


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
