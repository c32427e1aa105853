# SPDX-License-Identifier: Apache-2.0
"""Functions for graphs and sessions of tf.compat.v1, under the names of SMDDP and Horovod."""

from __future__ import annotations

from typing import Any

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.tensorflow import row_collectives
from smdist.dataparallel.tensorflow.op_library import tf
from smdist.dataparallel.tensorflow.set_members import members_of


def overlap(tensor: Any) -> Any:
    """Return the tensor unchanged.

    SMDDP needs this call to overlap all-reduces with the backward pass. smdist overlaps them
    always, so the call has no effect.
    """
    return tensor


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an op that sets all global variables of a graph to the values of `root_rank`.

    It is for the graph of a session of tf.compat.v1, which runs the op on all ranks after the
    variables are initialized. The graph must have the same variables in the same order on all
    ranks.

    Args:
        root_rank: The rank whose values are sent.

    Raises:
        NoSessionError: There is no graph of a session, and so no global variables.
        OptionError: The root rank does not exist.
    """
    _check_graph(
        f"broadcast_global_variables({root_rank!r})",
        "Call broadcast_variables(model.variables, root_rank=0) and the same for the optimizer's",
    )
    members = members_of(None, "broadcast_global_variables")
    members.place_of(root_rank)
    variables = tf.compat.v1.global_variables()
    if members.size == 1:
        return tf.no_op()
    return tf.group(
        *(
            each.assign(row_collectives.broadcast(each.read_value(), root_rank, members))
            for each in variables
        )
    )


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Hook of a MonitoredSession that calls broadcast_global_variables() when it has begun.

    Args:
        root_rank: The rank whose values are sent.
        device: Horovod's argument; must be empty.

    Raises:
        NoSessionError: There is no graph of a session.
        OptionError: A device is given, or the root rank does not exist; the last when the session
            begins.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        _check_graph(
            f"BroadcastGlobalVariablesHook({root_rank!r}{f', {device!r}' if device else ''})",
            "Call broadcast_variables(), or pass callbacks.BroadcastGlobalVariablesCallback(0) "
            "of smdist.dataparallel.tensorflow.keras to fit()",
        )
        require(
            not device,
            what=f"device is {device!r}",
            why="a tensor is always sent from its own device",
            hint="Leave device out",
            about="device",
        )
        self._root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Add the op to the graph, before it is finalized."""
        self._operation = broadcast_global_variables(self._root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:  # noqa: ARG002  its name
        """Run the op, after the variables are initialized."""
        session.run(self._operation)


class NoSessionError(OptionError, RuntimeError):
    """Error of a call that only the graph of a session of tf.compat.v1 supports.

    It is a RuntimeError, too, as in Horovod.
    """


def _check_graph(call: str, hint: str) -> None:
    if tf.compat.v1.executing_eagerly_outside_functions():
        raise NoSessionError(
            f"smdist does not support the call {call} outside of a graph of tf.compat.v1",
            "TensorFlow 2 has no global variables: each variable belongs to its model",
            hint,
            about=call.partition("(")[0],
            kind="unsupported",
        )
