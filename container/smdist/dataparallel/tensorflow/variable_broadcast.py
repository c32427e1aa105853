# SPDX-License-Identifier: Apache-2.0
"""Broadcast of one rank's variables to all ranks, packed into few messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow import row_collectives, setup_hints
from smdist.dataparallel.tensorflow.buckets import BucketTensor, pack
from smdist.dataparallel.tensorflow.fused_allreduce import ReduceOptions, all_reduce
from smdist.dataparallel.tensorflow.fusion_options import fusion_bytes
from smdist.dataparallel.tensorflow.op_library import tf, without_autograph
from smdist.dataparallel.tensorflow.operation_names import is_session_graph, named
from smdist.dataparallel.tensorflow.reduce_op import ReduceOp
from smdist.dataparallel.tensorflow.set_members import Members, ProcessSet, members_of
from smdist.dataparallel.tensorflow.variable_differences import (
    Description,
    describe,
    difference_between_ranks,
)
from smdist.dataparallel.tensorflow.variable_signature import checksum_of, names_of

_DIFFER: Final = (
    "broadcast_variables(): shapes, dtypes, names or order of variables differ between ranks."
)
_ALIKE: Final = "Build the same model and optimizer on all ranks"


@without_autograph
def broadcast_variables(
    variables: Any,
    root_rank: int = 0,
    process_set: ProcessSet | None = None,
) -> Any:
    """Set the variables of all ranks to the values that they have on `root_rank`.

    The states of Keras's seed generators are not broadcast, so that dropout differs between
    ranks; to make such a state equal, assign broadcast(state, root_rank) to it.

    Args:
        variables: tf.Variables and Keras variables, in lists, tuples or dicts of any depth,
            or a function that returns them.
        root_rank: The rank whose values are sent.
        process_set: Ranks that take part; by default all.

    Returns:
        In the graph of a session of tf.compat.v1 an op that sets the variables when the session
        runs it; otherwise None.

    Raises:
        OptionError: An element is not a variable, its shape is not known, or the root rank
            does not exist.
        tf.errors.FailedPreconditionError: Shapes, dtypes, names or order of the variables differ
            between ranks; within a tf.function it is tf.errors.InvalidArgumentError.
    """
    # a Keras model is callable, too, but has variables
    is_function = callable(variables) and not hasattr(variables, "variables")
    every = tf.nest.flatten(variables() if is_function else variables)
    given = [each for each in every if not _is_seed(_variable(each))]
    flat = [_variable(each) for each in given]
    members = members_of(process_set, "broadcast_variables")
    members.place_of(root_rank)
    if members.size == 1 or not flat:
        return tf.no_op() if is_session_graph() else None
    # a variable of this name is the step counter of an optimizer
    if any(getattr(each, "name", "") == "iteration" for each in given):
        setup_hints.note(setup_hints.OPTIMIZER)
    check = _check_agreement(given, flat, members)
    sizes = [
        BucketTensor(dtype=each.dtype.name, size_bytes=each.shape.num_elements() * each.dtype.size)
        for each in flat
    ]
    assigned: list[Any] = []
    with tf.control_dependencies([] if check is None else [check]):
        for bucket in pack(sizes, fusion_bytes()):
            assigned += _broadcast_bucket([flat[number] for number in bucket], root_rank, members)
    return tf.group(*assigned) if is_session_graph() else None


@without_autograph
def broadcast_(
    variables: Any,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet | None = None,
) -> Any:
    """Set variables to the values that they have on `root_rank`, and return them.

    In the graph of a session of tf.compat.v1 the results are tensors instead: a variable is set
    when the session computes its tensor.

    Args:
        variables: tf.Variable or Keras variable, also of a seed generator, or a list of them.
        root_rank: The rank whose value is sent.
        name: Name by which ranks match the operations, the same on all ranks; None to match them
            by the order of the calls.
        process_set: Ranks that take part; by default all.

    Raises:
        OptionError: It is no variable, or the root rank does not exist.
    """
    members = members_of(process_set, "broadcast_")
    members.place_of(root_rank)
    is_list = isinstance(variables, (list, tuple))
    results = []
    with named(name, "smdist_broadcast_in_place"):
        for inner in map(_variable, variables if is_list else [variables]):
            value = tf.convert_to_tensor(inner)
            if members.size > 1:
                value = inner.assign(row_collectives.broadcast(value, root_rank, members))
            results.append(tf.identity(value) if is_session_graph() else inner)
    if not is_session_graph():
        return variables
    return results if is_list else results[0]


def check_root(root_rank: Any) -> None:
    """Check that `root_rank` is the number of a rank of this job.

    Raises:
        OptionError: The job has no such rank.
    """
    members_of(None).place_of(root_rank)


def _variable(each: Any) -> Any:
    inner = getattr(each, "value", None)
    # a Keras variable wraps a tf.Variable
    variable = inner if isinstance(inner, tf.Variable) else each
    if isinstance(variable, tf.Variable):
        require(
            variable.shape.is_fully_defined(),
            what=f"broadcast_variables() received {variable.name!r} of shape {variable.shape}",
            why="its size must be known before variables are packed into messages",
            hint="Leave it out, and assign broadcast(variable, root_rank) to it",
            about="variables",
            kind="shape",
        )
        return variable
    raise OptionError(
        f"broadcast_variables() received {each!r}",
        "it is not a variable, and only variables can be set in place",
        "Pass model.variables or optimizer.variables, or use broadcast() for a tensor",
        about="variables",
    )


def _is_seed(variable: Any) -> bool:
    name = str(variable.name).partition(":")[0].rpartition("/")[-1]
    return name == "seed_generator_state" and variable.dtype.is_integer


def _check_agreement(given: Sequence[Any], variables: Sequence[Any], members: Members) -> Any:
    """Check that variables are the same on all ranks; in a graph, return the op that checks it."""
    description = describe(given, variables, names_of(given, is_brief=True))
    mine = tf.constant([_checksum_of(description)], tf.int64)
    low, high = all_reduce([mine, -mine], ReduceOptions(op=ReduceOp.MIN, members=members))
    if not tf.executing_eagerly():
        return tf.debugging.Assert(tf.reduce_all(tf.equal(low, -high)), [f"{_DIFFER} {_ALIKE}"])
    if int(low[0]) != -int(high[0]):
        text = f"broadcast_variables(): {difference_between_ranks(description, members)}. {_ALIKE}"
        raise tf.errors.FailedPreconditionError(None, None, text)
    return None


def _checksum_of(description: Description) -> int:
    kinds = [kind for _, kind, _ in description]
    return checksum_of(";".join([*kinds, *(name for _, _, name in description)]))


def _broadcast_bucket(variables: list[Any], root: int, members: Members) -> list[Any]:
    packed = tf.concat([tf.reshape(each, [-1]) for each in variables], axis=0)
    values = tf.split(
        row_collectives.broadcast(packed, root, members),
        [each.shape.num_elements() for each in variables],
    )
    return [
        variable.assign(tf.reshape(value, variable.shape))
        for variable, value in zip(variables, values, strict=True)
    ]
