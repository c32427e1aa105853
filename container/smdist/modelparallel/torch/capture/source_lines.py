# SPDX-License-Identifier: Apache-2.0
"""Search for the line of the user's code that an error message should name."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from types import FrameType, TracebackType

import torch
from torch import nn

_MODULES = str(Path("torch", "nn", "modules", "module.py"))
_NOT_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[3]))


def line_of_user(error: BaseException | None = None) -> str:
    """Return the innermost line of the user's code, such as "/home/me/model.py:12".

    Lines of PyTorch and of this package do not count.

    Args:
        error: Error whose traceback is searched; None searches the present call stack.

    Returns:
        File and line; "" if there is none.
    """
    if error is not None and error.__traceback__ is not None:
        return _of_traceback(error.__traceback__)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_foreign(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_of_change(module: nn.Module, attribute: str) -> str:
    """Return the line of a module's forward function that sets an attribute, as "model.py:12".

    The source text is searched, since the function has returned already.

    Returns:
        File and line; the function's first line if no line sets the attribute; "" if there is no
        source text.
    """
    function = inspect.unwrap(type(module).forward)
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return ""
    sets = re.compile(rf"\.{re.escape(attribute)}\b[^=(]*=(?!=)")
    at = next((at for at, line in enumerate(lines) if sets.search(line)), 0)
    return f"{inspect.getsourcefile(function)}:{first + at}"


def is_compiled_here() -> bool:
    """Return True if the innermost running module is inside a function of `torch.compile`."""
    if "torch._dynamo" not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(_MODULES):
        if frame.f_code.co_name == "compile_wrapper":
            return True
        frame = frame.f_back
    return False


def _of_traceback(traceback: TracebackType) -> str:
    found = ""
    step: TracebackType | None = traceback
    while step is not None:
        if not _is_foreign(step.tb_frame):
            found = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
        step = step.tb_next
    return found


def _is_foreign(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_NOT_USERS) or "<" in frame.f_code.co_filename
