# SPDX-License-Identifier: Apache-2.0
"""Copy of the user's code to an emulated host.

The code's folder may be a whole home directory, which contains the job's own folder. So directories
that jobs write to are not copied. Links to a directory that contains the link are not followed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sagemaker_dist.errors import SetupError

_NEVER: Final = frozenset({".git", "__pycache__"})
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The user's code, which is copied to each host.

    Attributes:
        folder: Directory of the code.
        only: Name of the one file of `folder` to copy, or None to copy the whole directory.
        dependencies: Files and directories that are copied next to the code.
        own: Resolved paths of directories that jobs write to; they are not copied.
    """

    folder: Path
    only: str | None = None
    dependencies: tuple[Path, ...] = ()
    own: frozenset[Path] = frozenset()

    def place(self, target: Path) -> None:
        """Copy the code and its dependencies into the directory `target`.

        Raises:
            SetupError: A file is missing, or cannot be read or written.
        """
        if self.only is None:
            self._copy(self.folder, target)
        else:
            self._copy(self.folder / self.only, target / self.only)
        for dependency in self.dependencies:
            self._copy(dependency, target / dependency.name)

    def _copy(self, source: Path, target: Path) -> None:
        try:
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True, ignore=_left_out(self.own))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        except (OSError, RecursionError) as error:  # shutil.Error is an OSError
            raise SetupError(
                f"the code in {source} cannot be copied to {target.parent}",
                _why(error),
                "Put the script into a folder with only its code, and pass that as source_dir",
                kind="missing_file" if isinstance(error, FileNotFoundError) else "",
            ) from error


def own_places(job: Path, output: str | None, name: str) -> frozenset[Path]:
    """Return the resolved paths of directories that jobs write to; they are not copied as code.

    These are the folders of all jobs, and the output directory of this job.

    Args:
        job: Folder of this job.
        output: The job's output_path, or None.
        name: Name of the job, which is also its directory below `output`.
    """
    root = job.parent
    places = {root, job, *(path.parent for path in root.glob("*/job.json"))}
    if output:
        places |= {Path(output), Path(output) / name}
    return frozenset(Path(os.path.realpath(place)) for place in places)


def _left_out(own: Iterable[Path]) -> Callable[[str, list[str]], set[str]]:
    """Return a function for the argument `ignore` of shutil.copytree.

    The function leaves out the directories `own`, caches, special files, dangling links, and links
    to a directory that contains the link.
    """
    places = set(own)

    def ignore(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if _is_left_out(Path(directory, name), places)}

    return ignore


def _is_left_out(path: Path, own: set[Path]) -> bool:
    if path.name in _NEVER:
        return True
    if not path.is_dir():
        return not path.is_file()  # dangling links, sockets, fifos, devices
    real = Path(os.path.realpath(path))
    return real in own or (path.is_symlink() and _contains(real, path))


def _contains(real: Path, link: Path) -> bool:
    """Return whether the directory `real`, the target of the link `link`, contains the link.

    Following such a link would never end.
    """
    return any(Path(os.path.realpath(above)).is_relative_to(real) for above in link.parents)


def _why(error: Exception) -> str:
    if isinstance(error, shutil.Error):
        faults = [str(fault[2]) for fault in error.args[0]]
        more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        return "; ".join(faults[:_SHOWN]) + more
    return str(error)
