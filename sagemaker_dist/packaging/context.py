# SPDX-License-Identifier: Apache-2.0
"""Build context of the training image: a directory with the layout of this repository.

    sagemaker_dist/  container/  pyproject.toml  README.md  LICENSE  [wheelhouse/]  [plugin/]

In a clone of the repository these are next to this package. An installed wheel has them below
sagemaker_dist/_image (force-include in pyproject.toml).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sagemaker_dist.errors import SetupError

_PACKAGE: Final = Path(__file__).parents[1]
_SHIPPED: Final = "_image"
_FILES: Final = ("pyproject.toml", "README.md", "LICENSE")
_NEVER: Final = shutil.ignore_patterns("__pycache__", "build", "*.so", _SHIPPED)


@contextmanager
def build_context(
    wheelhouse: Path | None = None, nccl_plugin: Sequence[Path] = ()
) -> Iterator[Path]:
    """Write a temporary build context, yield its directory, and remove it at the end.

    `wheelhouse` is a directory of wheels, which are added to the context; None adds none. The files
    of `nccl_plugin` are added to its directory `plugin`.

    Raises:
        SetupError: This installation lacks files of the image.
    """
    source = _source()
    with _directory() as context:
        shutil.copytree(_PACKAGE, context / "sagemaker_dist", ignore=_NEVER)
        shutil.copytree(source / "container", context / "container", ignore=_NEVER)
        for name in _FILES:
            shutil.copy2(source / name, context / name)
        if wheelhouse:
            _link(sorted(wheelhouse.glob("*.whl")), context / "wheelhouse")
        if nccl_plugin:
            _link(nccl_plugin, context / "plugin")
        yield context


@contextmanager
def _directory() -> Iterator[Path]:
    """Yield an empty directory, and remove it at the end.

    It is the same one for each build of a user. BuildKit keeps what it receives by the path of the
    context, so that a further build sends only the files that have changed, and the engine's disk
    does not hold one more copy of the wheelhouse for each build. While another build uses this
    directory, or where the home cannot be written to, a temporary directory is yielded.
    """
    place = Path.home() / ".sagemaker-dist" / "image-context"
    lock = _made(place)
    if lock is None:
        with TemporaryDirectory(prefix="sagemaker-dist-image-") as folder:
            yield Path(folder)
        return
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(lock)


def _made(place: Path) -> int | None:
    """Make an empty directory, and return the descriptor of its lock; None if it is not free."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    with suppress(OSError):
        place.parent.mkdir(exist_ok=True)
        lock = os.open(place.with_name(f"{place.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)  # left by a build that was killed
            place.mkdir(mode=0o700)
        except OSError:
            os.close(lock)
        else:
            return lock
    return None


def _source() -> Path:
    for place in (_PACKAGE / _SHIPPED, _PACKAGE.parent):
        if (place / "container" / "Dockerfile").is_file():
            return place
    raise SetupError(
        "this installation of sagemaker-dist cannot build images",
        f"neither {_PACKAGE / _SHIPPED} nor {_PACKAGE.parent} has container/Dockerfile",
        "Install sagemaker-dist again, or build from a clone of the project",
    )


def _link(files: Iterable[Path], into: Path) -> None:
    into.mkdir()
    for file in files:
        try:
            (into / file.name).hardlink_to(file.resolve())
        except OSError:  # hard links cannot lead to another file system
            shutil.copy2(file, into / file.name)
