# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets of the readers in Python: bytes, texts and files that others have written.

A target calls a reader with what an input makes. It fails if the reader raises another exception
than those that its docstring lists, or returns something that its annotations exclude.
"""

import file_readers  # noqa: F401  adds its targets
import message_readers  # noqa: F401
from reader_list import TARGETS, remove_files, run

__all__ = ["TARGETS", "remove_files", "run"]
