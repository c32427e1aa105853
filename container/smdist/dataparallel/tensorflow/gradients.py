# SPDX-License-Identifier: Apache-2.0
"""Reduction of a whole step's gradients: dense ones in fusion buffers, sparse ones gathered.

All ranks must agree on which gradients are None, which are sparse, and on the names of their
variables. A hash of these facts travels with the first buffer and is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from smdist.dataparallel.tensorflow import indexed_slices, setup_hints
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.variable_signature import mark_of, names_of

_DENSE, _SPARSE, _NONE = "dsn"


def reduce_gradients(
    gradients: Sequence[Any],
    sources: Sequence[Any],
    reduction: ReduceOptions,
    sparse_as_dense: bool = False,
    beside: str = "",
) -> list[Any]:
    """Return the gradients reduced over all ranks, each in its place; None stays None.

    Args:
        gradients: Gradients in the order of layers; the last ones are sent first.
        sources: The variable of each gradient. Its shape replaces an unknown shape of the
            gradient, and its name is compared between ranks (variable_signature.py).
        beside: Another text that must be equal on all ranks.

    Raises:
        tf.errors.InvalidArgumentError: Ranks disagree on shapes, Nones, sparseness, names of
            variables or `beside`.
    """
    setup_hints.note(setup_hints.GRADIENTS)
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
        _SPARSE: map(
            indexed_slices.united, indexed_slices.gather(slices, reduction) if slices else ()
        ),
        _NONE: repeat(None),
    }
    return [next(whole[kind]) for kind in kinds]


def described(gradients: Sequence[Any], sources: Sequence[Any]) -> str:
    """Describe which gradients are None or sparse, and their variables; "" if all are plain.

    Gradients are plain if each is dense and its variable has no name.
    """
    kinds = "".join(_kind(gradient) for gradient in gradients)
    names = names_of(sources)
    is_plain = set(kinds) <= {_DENSE} and not any(names)
    return "" if is_plain else "\n".join([kinds, *names])


def _reduce_dense(dense: list[Any], agreed: str, reduction: ReduceOptions) -> list[Any]:
    if not agreed:
        return all_reduce(dense, reduction)
    return all_reduce(dense or [tf.zeros([1])], reduction, mark_of(agreed))


def _kind(gradient: Any) -> str:
    if gradient is None:
        return _NONE
    return _SPARSE if indexed_slices.is_sparse(gradient) else _DENSE


def _known(gradient: Any, source: Any, sparse_as_dense: bool) -> Any:
    if gradient is None:
        return None
    if indexed_slices.is_sparse(gradient):
        return indexed_slices.as_dense(gradient) if sparse_as_dense else gradient
    gradient = tf.convert_to_tensor(gradient)
    shape = getattr(source, "shape", None)
    if gradient.shape.is_fully_defined() or shape is None:
        return gradient
    return tf.ensure_shape(gradient, shape)
