# SPDX-License-Identifier: Apache-2.0
"""Standard output is for the plan: what a model prints while it runs goes to standard error."""

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
    """Send there what is printed within, by Python, by libraries in C and by programs started."""
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    try:
        os.dup2(_STDERR, _STDOUT)
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # C keeps lines back where nobody looks on
        os.dup2(kept, _STDOUT)
        os.close(kept)
