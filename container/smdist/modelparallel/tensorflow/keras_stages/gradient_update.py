# SPDX-License-Identifier: Apache-2.0
"""Gradients of a step after its backward passes: sums over ties and replicas, norm, and update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import keras
import tensorflow as tf

from smdist.dataparallel.tensorflow import basics, op_library
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp
from smdist.dataparallel.tensorflow.set_members import Members
from smdist.modelparallel.tensorflow.keras_session import KerasSession
from smdist.modelparallel.tensorflow.keras_stages.keras_split import SplitKerasModel

_TIE_TAG: Final = 2**31  # tags of ties are above those of messages between stages


def sum_ties(split: SplitKerasModel, gradients: dict[int, Any]) -> None:
    """Sum the gradients of variables that stages on several ranks use, in place.

    The rank of the first stage sums them in the order of stages, and sends the sum to the others.

    Args:
        split: The model.
        gradients: Gradient of each variable of this rank, by id().
    """
    me = split.session.rank
    for number, variable, ranks in split.ties():
        if me not in ranks or not variable.trainable:
            continue
        tag = _TIE_TAG + 2 * number
        own = gradients.get(id(variable))
        own = tf.zeros(variable.shape, variable.dtype) if own is None else own
        if me == ranks[0]:
            for rank in ranks[1:]:
                own = own + _received(own, rank, tag)
            for rank in ranks[1:]:
                _send(own, rank, tag + 1)
        else:
            _send(own, ranks[0], tag)
            own = _received(own, ranks[0], tag + 1)
        gradients[id(variable)] = own


def average_replicas(
    session: KerasSession, variables: Sequence[Any], gradients: Mapping[int, Any]
) -> list[Any]:
    """Return the averages over replicas, in the order of the variables; None for no gradient."""
    found = [gradients.get(id(each)) for each in variables]
    there = [each for each in found if each is not None]
    if session.replica_ranks is not None and there:
        options = ReduceOptions(
            op=ReduceOp.AVERAGE, members=session.replica_ranks,
            fusion_bytes=session.options.engine.fusion_bytes,
        )  # fmt: skip
        there = all_reduce(there, options)
    rest = iter(there)
    return [None if each is None else next(rest) for each in found]


def squares_of_own(
    split: SplitKerasModel, variables: Sequence[Any], gradients: Sequence[Any]
) -> Any:
    """Return the sum of squares of the gradients that count on this rank, in float64.

    A gradient of a variable on several ranks counts on the rank of its first stage.
    """
    total = tf.zeros([], tf.float64)
    for variable, gradient in zip(variables, gradients, strict=True):
        if gradient is not None and split.rank_of[split.home(variable)] == split.session.rank:
            total += tf.reduce_sum(tf.square(tf.cast(gradient, tf.float64)))
    return total


def sum_of_numbers(values: Any, members: Members | None = None) -> Any:
    """Return the sum of a few numbers over ranks, without the work that fusion buffers need.

    Args:
        values: Tensor of float64.
        members: Ranks that sum, which must all call this. Default: all ranks.
    """
    size, group = (basics.size(), 0) if members is None else (members.size, members.group)
    if size == 1:
        return values
    return op_library.wait(op_library.start([values], ReduceOp.SUM.value, group), [values])[0]


def count_step(optimizer: Any, *, is_skipped: bool) -> None:
    """Count a step in the optimizer of a rank whose stages have nothing to update.

    So schedules of the learning rate and the loss scale are equal on all ranks.

    Args:
        optimizer: Optimizer of this rank.
        is_skipped: True if gradients of another rank overflowed under loss scaling.
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.iterations.assign_add(1)
    elif is_skipped:
        optimizer.step_counter.assign(0)
        optimizer.dynamic_scale.assign(optimizer.dynamic_scale / 2)
    else:
        optimizer.apply([], [])  # counts towards the next, larger scale
        optimizer.iterations.assign_add(1)


def _send(value: Any, rank: int, tag: int) -> None:
    op_library.wait_send(op_library.start_send(value, rank, tag), value.dtype)


def _received(like: Any, rank: int, tag: int) -> Any:
    shape = like.shape.as_list()
    return op_library.wait_move(
        op_library.start_receive(shape, like.dtype, rank, tag), like.dtype, shape
    )
