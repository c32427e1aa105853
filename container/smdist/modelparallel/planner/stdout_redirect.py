# SPDX-License-Identifier: Apache-2.0
"""Redirection of standard output to standard error, while the user's code runs.

So standard output contains only the plan, and other programs can read the plan from there.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Final

_STDOUT: Final = 1
_STDERR: Final = 2


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect standard output to standard error inside a `with` block.

    This includes the output of Python, of C libraries, and of child processes.
    """
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    try:
        os.dup2(_STDERR, _STDOUT)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(
            None
        )  # C buffers its lines; write them before the file descriptor changes back
        os.dup2(kept, _STDOUT)
        os.close(kept)
