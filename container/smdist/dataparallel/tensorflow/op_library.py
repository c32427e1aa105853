# SPDX-License-Identifier: Apache-2.0
"""TensorFlow and smdist's operations for it: one compiled file for TensorFlow 2.16 to 2.21."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, TypeVar, cast

from sagemaker_dist.errors import OptionError, SetupError

F = TypeVar("F", bound=Callable[..., Any])

_FIRST: Final = (2, 16)
_END: Final = (2, 22)
_INSTALL: Final = "Install one of these, such as pip install tensorflow-cpu==2.21.0"
_SLICE_MILLISECONDS: Final = 100
_COMPILED: Final = "smdist.dataparallel.tensorflow._C"

try:
    tf: Any = importlib.import_module("tensorflow")
except ImportError as error:
    raise SetupError("TensorFlow cannot be imported", str(error), _INSTALL) from error


def check_version(version: str) -> None:
    """Refuse a release of TensorFlow that the operations were not tested with.

    Raises:
        SetupError: The release is older than 2.16, or newer than 2.21.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not _FIRST <= (int(found[1]), int(found[2])) < _END:
        raise SetupError(
            f"TensorFlow is {version}", "smdist runs with TensorFlow 2.16 to 2.21", _INSTALL
        )


check_version(tf.__version__)


def as_written(function: F) -> F:
    """Exclude a function and its callees from AutoGraph, which rewrites code in a tf.function."""
    return cast(F, tf.autograph.experimental.do_not_convert(function))


@cache
def operations() -> Any:
    """Return TensorFlow's wrappers of the operations: smdist_start() and others.

    Raises:
        SetupError: This runtime was built without TensorFlow, or the file does not load.
    """
    found = find_spec(_COMPILED)
    if found is None or found.origin is None:
        raise SetupError(
            "the operations for TensorFlow are not here",
            "this runtime was built where there was no TensorFlow",
            "Install TensorFlow first (pip install tensorflow-cpu==2.21.0 pybind11), then the "
            "runtime again (pip install --force-reinstall --no-deps ./container)",
        )
    try:
        return tf.load_op_library(found.origin)
    except (tf.errors.OpError, OSError) as error:
        raise SetupError(
            "the operations for TensorFlow do not load", str(error), _INSTALL
        ) from error


@cache
def compiled() -> Any:
    """Load the operations and return the module `_C`: the engine, adopt() and release().

    Raises:
        SetupError: See operations().
    """
    operations()
    return importlib.import_module(_COMPILED)


def start(tensors: list[Any], op: str) -> Any:
    """Pack `tensors`, all of one dtype, and start one all-reduce of them.

    Returns:
        A handle, int64 [], which must be passed to wait() once.
    """
    check_surroundings()
    return operations().smdist_start(values=tensors, op=op)


def wait(handle: Any, tensors: list[Any]) -> list[Any]:
    """Wait for start(tensors) and return the reduced tensors in their shapes."""
    _let_interrupts_in(handle)
    with _one_after_the_other() as waits:
        results = operations().smdist_wait(handle, T=tensors[0].dtype, N=len(tensors))
        waits.append(results[0])
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return list(results)


def move(
    value: Any, kind: str, *, sent: Any = (), received: Any = (), op: str = "sum", root: int = 0
) -> Any:
    """Start moving rows (along axis 0) between ranks.

    Args:
        kind: broadcast, all_gather, all_to_all, reduce_scatter or barrier.
        sent: Number of rows for each rank, int64 [size], or nothing.
        received: Number of rows from each rank, int64 [size], or nothing.

    Returns:
        A handle, int64 [], which must be passed to moved() once.
    """
    check_surroundings()
    return operations().smdist_move(
        value=value,
        sent=tf.cast(tf.reshape(sent, [-1]), tf.int64),
        received=tf.cast(tf.reshape(received, [-1]), tf.int64),
        kind=kind,
        op=op,
        root=root,
    )


def moved(handle: Any, dtype: Any, shape: Any) -> Any:
    """Wait for move() and return the received rows."""
    _let_interrupts_in(handle)
    with _one_after_the_other() as waits:
        result = operations().smdist_moved(handle, T=dtype)
        waits.append(result)
    result.set_shape(shape)
    return result


def _let_interrupts_in(handle: Any) -> None:
    """Wait in Python, which handles Ctrl-C; inside TensorFlow Ctrl-C would wait for the timeout."""
    if tf.executing_eagerly():
        number = int(handle)
        while not compiled().ends_within(number, _SLICE_MILLISECONDS):
            pass


@contextmanager
def _one_after_the_other() -> Iterator[list[Any]]:
    """Run the waits of one graph one after another; yields a list to append the result to.

    Each wait blocks a TensorFlow thread, and waits in parallel could keep a later start from
    running.
    """
    if tf.executing_eagerly():
        yield []
        return
    graph = tf.compat.v1.get_default_graph()
    waits = getattr(graph, "_smdist_waits", [])
    graph._smdist_waits = waits
    with tf.control_dependencies(waits[-1:]):
        yield waits


def check_surroundings() -> None:
    """Refuse XLA, and contexts in which operations may start in another order on each rank.

    Raises:
        OptionError: The function being traced is for a session, for a data pipeline, for several
            replicas in one process, or for XLA, which has no kernel for smdist's operations.
    """
    if not tf.executing_eagerly():
        _check_graph(tf.compat.v1.get_default_graph())
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise OptionError(
            f"a collective within a strategy of {replicas} replicas",
            "each would call it, in an order of its own",
            "Leave the strategy out, and start one rank for each GPU",
        )


def _check_graph(graph: Any) -> None:
    if _is_for_xla(graph):
        raise OptionError(
            "jit_compile is True around a collective of smdist.dataparallel.tensorflow",
            "XLA has no kernel for it",
            "Pass jit_compile=False to tf.function or Model.compile(); functions of the model "
            "may keep it",
            about="jit_compile",
        )
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise OptionError(
            "a collective in a graph for a session",
            "a session starts operations as they come, and each rank in another order",
            "Call it eagerly or within tf.function, outside of tf.Graph().as_default()",
        )
    if transformation := _transformation_around(graph):
        raise OptionError(
            f"a collective in {transformation}()",
            "the pipeline runs ahead of the training and beside it, on each rank in another order",
            "Call it in the loop that reads the dataset",
        )


def _transformation_around(graph: Any) -> str | None:
    """Return the Dataset method that calls the function being traced, or None."""
    while graph is not None:
        name = getattr(graph, "name", "")
        for method in ("map", "flat_map", "interleave", "filter"):
            if name.startswith(f"Dataset_{method}_"):
                return f"Dataset.{method}"
        graph = getattr(graph, "outer_graph", None)
    return None


def _is_for_xla(graph: Any) -> bool:
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    return bool(GraphOrParentsInXlaContext(graph))
