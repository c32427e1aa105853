# SPDX-License-Identifier: Apache-2.0
"""Functions of Horovod in the ranks of a test, between init() and shutdown()."""

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def initialized(**options: Any) -> Iterator[Any]:
    """Provide the module smdist.dataparallel.torch.horovod after init(**options)."""
    import smdist.dataparallel.torch.horovod as hvd

    hvd.init(**options)
    try:
        yield hvd
    finally:
        hvd.shutdown()


def caught(error: type[BaseException], function: Any, *args: Any, **options: Any) -> Any:
    """Return the error that the call raises.

    Raises:
        AssertionError: It raises none.
    """
    try:
        function(*args, **options)
    except error as found:
        return found
    raise AssertionError(f"{function} has raised no {error.__name__}")


@contextlib.contextmanager
def strict_warnings() -> Iterator[None]:
    """Raise each warning as an error, also those that torch gives once in a process."""
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    finally:
        torch.set_warn_always(False)
