# SPDX-License-Identifier: Apache-2.0
"""Files from which the build installs NCCL's network plugin aws-ofi-nccl, and what it needs.

With the plugin, NCCL sends over EFA. It comes as packages of Debian or Ubuntu, as a tarball, or as
the shared library itself. Only whether a file is what its name says is checked here; the build
checks that the library can be loaded.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from sagemaker_dist.errors import OptionError

LIBRARY: Final = re.compile(r"(?:.*/)?libnccl-net[\w.-]*\.so(?:\.\d+)*")
_TARBALL: Final = re.compile(r".*\.(?:tar|tgz|tar\.(?:gz|xz|bz2))")
_DEBIAN: Final = b"!<arch>\n"
_ELF: Final = b"\x7fELF"
_HINT: Final = "Pass packages (.deb), tarballs or the library libnccl-net*.so of aws-ofi-nccl"


def plugin_faults(files: Sequence[Path]) -> Iterator[OptionError]:
    """Yield a fault for each file that is no package, tarball or library of NCCL's plugin."""
    for number, file in enumerate(map(Path, files)):
        problem = _problem(file)
        if problem:
            about = ("nccl_plugin", number)
            yield OptionError(f"nccl_plugin is {str(file)!r}", problem, _HINT, about)
    names = [Path(file).name for file in files]
    if len({*names}) < len(names):
        yield OptionError(
            f"nccl_plugin is {', '.join(names)}",
            "two files have the same name",
            "Pass each file once, and files of different names",
            about="nccl_plugin",
            kind="conflict",
        )


def _problem(file: Path) -> str:
    """Return what is wrong with a file, or "" if nothing is."""
    if not file.is_file():
        return "there is no such file"
    with file.open("rb") as opened:
        start = opened.read(8)
    if file.suffix == ".deb":
        return "" if start == _DEBIAN else "it is not a Debian package"
    if _TARBALL.fullmatch(file.name):
        return _tarball_problem(file)
    if LIBRARY.fullmatch(file.name):
        return "" if start.startswith(_ELF) else "it is not a shared library"
    return "its name is not that of a package, a tarball or a library libnccl-net*.so"


def _tarball_problem(file: Path) -> str:
    try:
        with tarfile.open(file) as archive:
            names = archive.getnames()
    except (tarfile.TarError, OSError, EOFError):
        return "it is not a tarball"
    return "" if any(map(LIBRARY.fullmatch, names)) else "it has no library libnccl-net*.so"
