# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks that run collectives of torch tensors without the others."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from sagemaker_dist.errors import require
from smdist.dataparallel.process_sets import ProcessSet

__all__ = ["ProcessSet", "after_init", "check_initialized", "global_process_set"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

global_process_set: Final = ProcessSet([])


def check_initialized(function: str) -> None:
    """Check that init() was called, and shutdown() was not.

    Args:
        function: Name of the function that was called.

    Raises:
        OptionError: It was not.
    """
    require(
        global_process_set.process_set_id is not None,
        what=f"{function}() was called before init()",
        why="Horovod's names are not initialized in this process, or shutdown() was called",
        hint="Call hvd.init() first",
        about=function,
        kind="too_early",
    )


def after_init(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let the function check first that init() was called; a decorator."""

    @wraps(function)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        check_initialized(function.__name__)
        return function(*args, **kwargs)

    return checked
