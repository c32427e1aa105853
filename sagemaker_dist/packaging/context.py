# SPDX-License-Identifier: Apache-2.0
"""Build context of the training image: a directory with the layout of this repository.

    sagemaker_dist/  container/  pyproject.toml  README.md  LICENSE  [wheelhouse/]  [plugin/]

In a clone of the repository these are next to this package. An installed wheel has them below
sagemaker_dist/_image (force-include in pyproject.toml).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
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
    with TemporaryDirectory(prefix="sagemaker-dist-image-") as folder:
        context = Path(folder)
        shutil.copytree(_PACKAGE, context / "sagemaker_dist", ignore=_NEVER)
        shutil.copytree(source / "container", context / "container", ignore=_NEVER)
        for name in _FILES:
            shutil.copy2(source / name, context / name)
        if wheelhouse:
            _link(sorted(wheelhouse.glob("*.whl")), context / "wheelhouse")
        if nccl_plugin:
            _link(nccl_plugin, context / "plugin")
        yield context


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
