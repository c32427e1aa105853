# SPDX-License-Identifier: Apache-2.0
"""Reduction of all gradients of a step: dense ones in fusion buffers, sparse ones gathered.

On all ranks the same gradients must be None, the same ones must be sparse, and their variables
must have the same names. A hash of these facts is sent with the first buffer and compared
between ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

from smdist.dataparallel.tensorflow import indexed_slices, setup_hints
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.variable_signature import checksum_of, names_of

_DENSE, _SPARSE, _NONE = "dsn"


def reduce_gradients(
    gradients: Sequence[Any],
    sources: Sequence[Any],
    reduction: ReduceOptions,
    sparse_as_dense: bool = False,
    also_equal: str = "",
) -> list[Any]:
    """Reduce gradients over all ranks; return the results in the order of `gradients`.

    A gradient that is None stays None.

    Args:
        gradients: Gradients in the order of layers, as tensors, IndexedSlices or None; the last
            ones are sent first.
        sources: The variable of each gradient. Its shape replaces an unknown shape of the
            gradient, and its name is compared between ranks (variable_signature.py).
        reduction: Options of the all-reduce.
        sparse_as_dense: True to convert IndexedSlices to dense tensors before the reduction.
        also_equal: Text that must be the same on all ranks, in addition to the names of variables.

    Raises:
        tf.errors.FailedPreconditionError: Ranks have different shapes, names of variables or
            `also_equal`, or a gradient is None or sparse on some ranks only.
    """
    setup_hints.note(setup_hints.GRADIENTS)
    known = [
        _known(gradient, source, sparse_as_dense)
        for gradient, source in zip(gradients, sources, strict=True)
    ]
    kinds = "".join(_kind(gradient) for gradient in known)
    agreed = describe_gradients(known, sources) + also_equal
    dense = [gradient for gradient in known if _kind(gradient) == _DENSE]
    slices = [gradient for gradient in known if _kind(gradient) == _SPARSE]
    whole: dict[str, Iterator[Any]] = {
        _DENSE: iter(_reduce_dense(dense, agreed, reduction)),
        _SPARSE: map(
            indexed_slices.merge_duplicates,
            indexed_slices.gather(slices, reduction) if slices else (),
        ),
        _NONE: repeat(None),
    }
    return [next(whole[kind]) for kind in kinds]


def describe_gradients(gradients: Sequence[Any], sources: Sequence[Any]) -> str:
    """Return a text with the kind (dense, sparse, None) of each gradient and its variable's name.

    `sources` has the variable of each gradient. Return "" if all gradients are dense and no
    variable has a name.
    """
    kinds = "".join(_kind(gradient) for gradient in gradients)
    names = names_of(sources)
    is_plain = set(kinds) <= {_DENSE} and not any(names)
    return "" if is_plain else "\n".join([kinds, *names])


def _reduce_dense(dense: list[Any], agreed: str, reduction: ReduceOptions) -> list[Any]:
    if not agreed:
        return all_reduce(dense, reduction)
    return all_reduce(dense or [tf.zeros([1])], reduction, checksum_of(agreed))


def _kind(gradient: Any) -> str:
    if gradient is None:
        return _NONE
    return _SPARSE if indexed_slices.is_sparse(gradient) else _DENSE


def _known(gradient: Any, source: Any, sparse_as_dense: bool) -> Any:
    if gradient is None:
        return None
    if indexed_slices.is_sparse(gradient):
        return indexed_slices.to_dense(gradient) if sparse_as_dense else gradient
    gradient = tf.convert_to_tensor(gradient)
    shape = getattr(source, "shape", None)
    if gradient.shape.is_fully_defined() or shape is None:
        return gradient
    return tf.ensure_shape(gradient, shape)
