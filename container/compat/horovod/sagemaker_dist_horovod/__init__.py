# SPDX-License-Identifier: Apache-2.0
"""Finder of the package `horovod` below this one; a file *.pth imports it as Python starts.

The package is not installed under its name: pip would overwrite the files of Horovod itself without
a word. If Horovod is installed, its own package is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Final

_NAME: Final = "horovod"
_PLACE: Final = str(Path(__file__).parent / "packages")


class HorovodFinder:
    """Finder of the module `horovod`, for `sys.meta_path`."""

    @staticmethod
    def find_spec(
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG004  a finder gets it
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the spec of our package `horovod`; None for other names, and beside Horovod."""
        if name != _NAME:
            return None
        other = PathFinder.find_spec(name, None, target)
        if other is not None and other.origin is not None:  # a folder without __init__.py has none
            sys.stderr.write(
                f"sagemaker-dist-horovod: horovod is {other.origin}, which is installed, too;"
                " uninstall it to run on the engine of sagemaker-dist\n"
            )
            return None
        return PathFinder.find_spec(name, [_PLACE])


if not any(each is HorovodFinder for each in sys.meta_path):
    sys.meta_path.insert(0, HorovodFinder)
