# SPDX-License-Identifier: Apache-2.0
"""One rank's variables to all ranks, several in one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow import rows, world
from smdist.dataparallel.tensorflow.agreement import mark_of, names_of
from smdist.dataparallel.tensorflow.buckets import Piece, pack
from smdist.dataparallel.tensorflow.library import as_written, tf
from smdist.dataparallel.tensorflow.options import fusion_bytes
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp
from smdist.dataparallel.tensorflow.reducing import Reduction, all_reduce


@as_written
def broadcast_variables(variables: Any, root_rank: int = 0) -> None:
    """Give every rank's variables the values they have on `root_rank`.

    Args:
        variables: tf.Variables and Keras variables, in lists, tuples or dicts as deep as
            you like; a function that returns them is called.

    Raises:
        OptionError: Something is no variable, or there is no such rank.
        tf.errors.InvalidArgumentError: Ranks brought variables of other shapes or dtypes.
    """
    flat = [
        _variable(each)
        for each in tf.nest.flatten(variables() if callable(variables) else variables)
    ]
    check_root(root_rank)
    if world.size() == 1 or not flat:
        return
    _agree(flat)
    pieces = [
        Piece(dtype=each.dtype.name, size_bytes=each.shape.num_elements() * each.dtype.size)
        for each in flat
    ]
    for bucket in pack(pieces, fusion_bytes()):
        _broadcast_bucket([flat[number] for number in bucket], root_rank)


def check_root(root_rank: Any) -> None:
    """Refuse a rank that there is not.

    Raises:
        OptionError: It is no rank of this job.
    """
    require(
        isinstance(root_rank, int) and 0 <= root_rank < world.size(),
        what=f"root_rank is {root_rank!r}",
        why=f"ranks of this job are 0 to {world.size() - 1}",
        mend="Pass one of them",
    )


def _variable(each: Any) -> Any:
    inner = getattr(each, "value", None)
    if isinstance(inner, tf.Variable):  # a Keras variable holds one
        return inner
    if isinstance(each, tf.Variable):
        return each
    raise OptionError(
        f"broadcast_variables() got {each!r}",
        "it sets variables in place, and this is none",
        "Pass model.variables or optimizer.variables, or use broadcast() for a tensor",
    )


def _agree(variables: Sequence[Any]) -> None:
    shapes = (f"{each.dtype.name}{each.shape}" for each in variables)
    text = ";".join([*shapes, *names_of(variables, is_brief=True)])
    mine = tf.constant([mark_of(text)], tf.int64)
    low, high = all_reduce([mine, -mine], Reduction(op=ReduceOp.MIN))
    tf.debugging.assert_equal(
        low,
        -high,
        "broadcast_variables(): shapes, dtypes, names or order of variables differ between ranks",
    )


def _broadcast_bucket(variables: list[Any], root: int) -> None:
    packed = tf.concat([tf.reshape(each, [-1]) for each in variables], axis=0)
    values = tf.split(
        rows.broadcast(packed, root), [each.shape.num_elements() for each in variables]
    )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.reshape(value, variable.shape))
