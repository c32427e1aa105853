# SPDX-License-Identifier: Apache-2.0
"""Import of TensorFlow, and smdist's compiled operations for TensorFlow 2.16 to 2.21."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, Final, TypeVar, cast

from sagemaker_dist.errors import OptionError, SetupError

F = TypeVar("F", bound=Callable[..., Any])

_FIRST: Final = (2, 16)
_END: Final = (2, 22)
_INSTALL: Final = (
    "Install TensorFlow 2.16 to 2.21, for example with pip install tensorflow-cpu==2.21.0"
)
_POLL_MILLISECONDS: Final = 100
_COMPILED: Final = "smdist.dataparallel.tensorflow._C"

try:
    tf: Any = importlib.import_module("tensorflow")
except ImportError as error:
    raise SetupError(
        "TensorFlow cannot be imported", str(error), _INSTALL, about="tensorflow"
    ) from error


def check_version(version: str) -> None:
    """Check that the release of TensorFlow is one with which the operations were tested.

    Raises:
        SetupError: The release is older than 2.16, or newer than 2.21.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not _FIRST <= (int(found[1]), int(found[2])) < _END:
        raise SetupError(
            f"the installed TensorFlow is {version}",
            "smdist supports TensorFlow 2.16 to 2.21",
            _INSTALL,
            about="tensorflow",
        )


check_version(tf.__version__)


def without_autograph(function: F) -> F:
    """Decorate a function so that AutoGraph rewrites neither it nor the functions that it calls.

    AutoGraph is the part of tf.function that rewrites Python code.
    """
    return cast(F, tf.autograph.experimental.do_not_convert(function))


@cache
def operations() -> Any:
    """Return the module with smdist's TensorFlow operations: smdist_start() and others.

    Raises:
        SetupError: This runtime was built without TensorFlow, or TensorFlow cannot load the
            compiled operations.
    """
    found = find_spec(_COMPILED)
    if found is None or found.origin is None:
        raise SetupError(
            "smdist's operations for TensorFlow are missing",
            "TensorFlow was not installed when sagemaker-dist-runtime was built",
            "Install TensorFlow first (pip install tensorflow-cpu==2.21.0 pybind11), then build the"
            " runtime again (pip install --force-reinstall --no-deps ./container)",
        )
    try:
        return tf.load_op_library(found.origin)
    except (tf.errors.OpError, OSError) as error:
        raise SetupError(
            "smdist's operations for TensorFlow cannot be loaded", str(error), _INSTALL
        ) from error


@cache
def compiled() -> Any:
    """Load smdist's TensorFlow operations, and return the compiled module with the engine.

    Raises:
        SetupError: This runtime was built without TensorFlow, or TensorFlow cannot load the
            compiled operations.
    """
    operations()
    return importlib.import_module(_COMPILED)


def start(tensors: list[Any], op: str, group: int = 0, key: str = "", label: str = "") -> Any:
    """Start one all-reduce of `tensors`, which must all have the same dtype.

    Args:
        tensors: Tensors of one dtype.
        op: Value of a ReduceOp, such as "sum".
        group: Number of a group of the engine; 0 for all ranks.
        key: Name by which ranks match it (operation_names.py); "" for the order of the calls.
        label: The script's call, for errors; "" if they name only the results.

    Returns:
        A handle, an int64 scalar, which must be passed to wait() once.
    """
    check_context()
    return operations().smdist_start(values=tensors, op=op, group=group, key=key, label=label)


def wait(handle: Any, tensors: list[Any], key: str = "") -> list[Any]:
    """Wait for the all-reduce that start(tensors) has started; return the reduced tensors.

    `handle` is the result of start(), which had the same `key`.
    """
    if key and not tf.executing_eagerly():
        return _awaited(handle, tensors[0].dtype, [tensor.shape for tensor in tensors])
    _wait_interruptibly(handle)
    with _sequential_waits() as waits:
        results = operations().smdist_wait(handle, T=tensors[0].dtype, N=len(tensors))
        waits.append(results[0])
    for result, tensor in zip(results, tensors, strict=True):
        result.set_shape(tensor.shape)
    return list(results)


def start_move(
    value: Any,
    kind: str,
    *,
    sent: Any = (),
    received: Any = (),
    op: str = "sum",
    root: int = 0,
    group: int = 0,
    key: str = "",
    label: str = "",
) -> Any:
    """Start a collective that moves rows (along axis 0) between ranks.

    Args:
        value: Tensor [rows, ...] to send.
        kind: "broadcast", "all_gather", "all_to_all", "reduce_scatter" or "barrier".
        sent: Number of rows to send to each rank, int64 [size]; empty if `kind` needs none.
        received: Number of rows to receive from each rank, int64 [size]; empty if `kind` needs
            none.
        op: Value of a ReduceOp, for reduce_scatter.
        root: Rank of the group that sends, for broadcast.
        group: Number of a group of the engine; 0 for all ranks.
        key: Name by which ranks match it (operation_names.py); "" for the order of the calls.
        label: The script's call, for errors; "" if they name only the results.

    Returns:
        A handle, an int64 scalar, which must be passed to wait_move() once.
    """
    check_context()
    return operations().smdist_move(
        value=value,
        sent=tf.cast(tf.reshape(sent, [-1]), tf.int64),
        received=tf.cast(tf.reshape(received, [-1]), tf.int64),
        kind=kind,
        op=op,
        root=root,
        group=group,
        key=key,
        label=label,
    )


def wait_move(handle: Any, dtype: Any, shape: Any, key: str = "") -> Any:
    """Wait for the collective that start_move() has started; return the received rows.

    `handle` is the result of start_move(), which had the same `key`; `dtype` and `shape` are those
    of the rows.
    """
    if key and not tf.executing_eagerly():
        return _awaited(handle, dtype, [shape])[0]
    _wait_interruptibly(handle)
    with _sequential_waits() as waits:
        result = operations().smdist_moved(handle, T=dtype)
        waits.append(result)
    result.set_shape(shape)
    return result


def start_send(value: Any, peer: int, tag: int) -> Any:
    """Start to send a tensor to rank `peer`; it ends when that rank receives with the same tag.

    Returns:
        A handle, an int64 scalar, which must be passed to wait_send() once.
    """
    check_context()
    return operations().smdist_send(value=value, peer=peer, tag=tag)


def wait_send(handle: Any, dtype: Any) -> None:
    """Wait until the tensor of the given dtype that start_send() sends has been sent."""
    wait_move(handle, dtype, [0])


def start_receive(shape: Sequence[int], dtype: Any, peer: int, tag: int) -> Any:
    """Start to receive a tensor that rank `peer` sends with the same tag.

    Returns:
        A handle, an int64 scalar, which must be passed to wait_move() once.
    """
    check_context()
    return operations().smdist_receive(
        shape=tf.constant(shape, tf.int64, shape=[len(shape)]), peer=peer, tag=tag, T=dtype
    )


def _awaited(handle: Any, dtype: Any, shapes: Sequence[Any]) -> list[Any]:
    """Return the results of a named operation of a graph, without blocking TensorFlow's threads.

    Named operations may start in different orders on each rank, so waits for them may not either
    delay each other or occupy all threads.
    """
    results: list[Any] = operations().smdist_await(handle, T=dtype, N=len(shapes))
    for result, shape in zip(results, shapes, strict=True):
        result.set_shape(shape)
    return results


def _wait_interruptibly(handle: Any) -> None:
    """Wait until the operation of this handle has ended; do nothing in a graph.

    The wait consists of waits of 100 ms, between which Python can handle Ctrl-C. Python cannot
    handle Ctrl-C inside a TensorFlow operation.
    """
    if tf.executing_eagerly():
        number = int(handle)
        while not compiled().ends_within(number, _POLL_MILLISECONDS):
            pass


@contextmanager
def _sequential_waits() -> Iterator[list[Any]]:
    """Delay the wait operation created in the `with` block until all earlier waits have ended.

    Each wait blocks a TensorFlow thread, so simultaneous waits of a graph could block all threads.
    In eager code this function does nothing.

    Yields:
        Results of the graph's earlier waits. The `with` block must append the new wait's result.
    """
    if tf.executing_eagerly():
        yield []
        return
    graph = tf.compat.v1.get_default_graph()
    waits = getattr(graph, "_smdist_waits", [])
    graph._smdist_waits = waits
    with tf.control_dependencies(waits[-1:]):
        yield waits


def check_context() -> None:
    """Check that a collective of smdist can run at the place where it is called.

    Raises:
        OptionError: The place is a function that XLA compiles, a data
            pipeline such as Dataset.map, or a tf.distribute strategy with several replicas.
    """
    if not tf.executing_eagerly():
        _check_graph(tf.compat.v1.get_default_graph())
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise OptionError(
            f"a collective was called within a tf.distribute strategy of {replicas} replicas",
            "each replica would call it, in a different order on each rank",
            "Leave the strategy out, and start one rank for each GPU",
            about="strategy",
        )


def _check_graph(graph: Any) -> None:
    if _is_for_xla(graph):
        raise OptionError(
            "a collective of smdist was called in a function with jit_compile=True",
            "XLA has no kernel for collectives",
            "Pass jit_compile=False to this tf.function or to Model.compile(); functions without"
            " collectives may keep jit_compile=True",
            about="jit_compile",
        )
    if transformation := _transformation_around(graph):
        raise OptionError(
            f"a collective was called in {transformation}()",
            "a data pipeline runs in parallel with the training, in a different order on each rank",
            "Call it in the loop that reads the dataset",
            about=transformation,
        )


def _transformation_around(graph: Any) -> str | None:
    """Return the Dataset method for which the graph is traced, such as "Dataset.map", or None."""
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
