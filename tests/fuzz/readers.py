# SPDX-License-Identifier: Apache-2.0
"""Fuzz targets of the readers in Python: bytes, texts and files that others have written.

A target calls a reader with what an input makes. It fails if the reader raises another exception
than those that its docstring lists, or returns something that its annotations exclude.
"""

from importlib import import_module

from reader_list import TARGETS, run

# The quickest imports come first: the last module needs torch.
_MODULES = ("message_readers", "plan_reader", "file_readers", "checkpoint_reader")


def load(name: str | None = None) -> None:
    """Import the modules with the targets: those up to the target `name`, or all of them."""
    for module in _MODULES:
        import_module(module)
        if name in TARGETS:
            return


__all__ = ["TARGETS", "load", "run"]
