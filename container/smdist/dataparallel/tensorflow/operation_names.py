# SPDX-License-Identifier: Apache-2.0
"""Names by which ranks match collectives, whatever the order in which each rank starts them.

A collective has such a name if the script passes `name`, or if it is in the graph of a session,
which starts operations in an order of its own. All other collectives are numbered: the ranks match
them by the order of the calls, without a message.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from smdist.dataparallel.tensorflow.op_library import tf

_PREFIX: Final = "smdist_"
_OF: Final = " of "
_MAX_LENGTH: Final = 200  # characters; the op's attribute has room for 511 bytes


class _Current(threading.local):
    """Name of the collective that this thread is calling, and its operations so far."""

    name: str | None = None
    count: int = 0
    label: str = ""  # the script's call, for errors


_current = _Current()


@contextmanager
def named(name: str | None, default: str) -> Iterator[None]:
    """Match the operations of the `with` block by `name`, if it is given.

    Args:
        name: The argument of the script, the same on all ranks; None for none.
        default: Name in the graph of a collective without a name: "smdist_" and its function.
    """
    before = _current.name, _current.count, _current.label
    if not _current.label:  # an outer call is the script's own
        own = default.removeprefix(_PREFIX)
        _current.label = f"{own}()" if name is None else f"{own}(name={_short(name)!r})"
    if name is not None:
        _current.name, _current.count = name, 0
    try:
        with tf.name_scope(_scope(name or default)):
            yield
    finally:
        _current.name, _current.count, _current.label = before


def label() -> str:
    """Return the script's call for errors, such as "allgather(name='x')"; "" outside of named()."""
    return _current.label


def add_rows_to_label(value: Any) -> None:
    """Add the dtype and the shape of a tensor of rows to label(), without the number of rows.

    TensorFlow keeps a kernel for each label, so labels must not differ from step to step.
    """
    if not _current.label or value.shape.rank is None:
        return
    sizes = ", ".join("?" if each is None else str(each) for each in (None, *value.shape[1:]))
    before = f"{_current.label}, " if _OF in _current.label else f"{_current.label}{_OF}"
    if len(before) < _MAX_LENGTH:
        _current.label = f"{before}{value.dtype.name} [{sizes}]"


def next_key() -> str:
    """Return the name of the operation that is created now; "" if it is numbered."""
    if is_session_graph():
        return _short(tf.compat.v1.get_default_graph().unique_name("smdist_operation"))
    if _current.name is None:
        return ""
    _current.count += 1
    return _short(f"{_current.name}/{_current.count}")


def is_session_graph() -> bool:
    """Return True where operations are added to the graph of a session of tf.compat.v1."""
    return not bool(tf.compat.v1.executing_eagerly_outside_functions())


def _scope(name: str) -> str:
    """Return the name with only those characters that TensorFlow allows in a scope."""
    allowed = "".join(
        each if each.isascii() and (each.isalnum() or each in "._-/") else "_" for each in name
    )
    return allowed if allowed[:1].isalnum() else f"n{allowed}"


def _short(name: str) -> str:
    if len(name) <= _MAX_LENGTH and name.isascii():
        return name
    return f"{name[:80]}#{zlib.crc32(name.encode())}".encode("ascii", "replace").decode()
