# SPDX-License-Identifier: Apache-2.0
"""What hosts leave behind, gathered as SageMaker does: one model of all hosts."""

from __future__ import annotations

import filecmp
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sagemaker_dist.planning import LocalJob
from sagemaker_dist.runners.local.folder import JobFolder
from sagemaker_dist.runners.local.tree import HostTree
from sagemaker_dist.runners.protocol import NO_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Files of several hosts as one tree.

    Attributes:
        files: Path in the tree -> where it lies, parents before children.
        clashes: Paths that two hosts wrote differently; the lowest host's is kept.
    """

    files: dict[str, Path]
    clashes: tuple[str, ...]


def merge(roots: Iterable[Path]) -> Merged:
    """Lay the trees of all hosts over each other, the lowest host on top."""
    files: dict[str, Path] = {}
    clashes: list[str] = []
    for root in roots:
        for path in _walk(root):
            name = str(path.relative_to(root))
            above = (files.get(str(parent)) for parent in Path(name).parents)
            if any(each and (each.is_symlink() or not each.is_dir()) for each in above):
                continue  # a lower host has a file or a link where this one has a directory
            if files.setdefault(name, path) is not path and not _same(files[name], path):
                clashes.append(name)
    return Merged(files=files, clashes=tuple(dict.fromkeys(clashes)))


class Unwanted(Exception):  # noqa: N818  nothing went wrong
    """The job was stopped while its model was being written."""


def gather(
    folder: JobFolder,
    job: LocalJob,
    trees: list[HostTree],
    say: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write the model and the output data of a job.

    `check` is called before each file, to raise Unwanted.

    Raises:
        Unwanted: What `check` raised; nothing half is left.
        OSError: The disk is full, or a file cannot be read or written.
    """
    model, data = merge(t.model for t in trees), merge(t.output_data for t in trees)
    for name in (*model.clashes, *data.clashes):
        say(f"hosts wrote different files {name}; kept the lowest host's")
    output = folder.output(job)
    output.mkdir(parents=True, exist_ok=True)
    pack = _pack if job.compress else _copy
    if not model.files:
        say(f"{NO_MODEL.partition(' ')[2]}: SM_MODEL_DIR stayed empty on every host")
    pack(model, folder.model(job), check)
    if data.files:
        pack(data, output / ("output.tar.gz" if job.compress else "data"), check)


def _walk(root: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _same(ours: Path, theirs: Path) -> bool:
    if ours.is_symlink() or theirs.is_symlink():
        return ours.is_symlink() and theirs.is_symlink() and ours.readlink() == theirs.readlink()
    if ours.is_dir() or theirs.is_dir():
        return ours.is_dir() and theirs.is_dir()
    return filecmp.cmp(ours, theirs, shallow=False)


def _pack(tree: Merged, target: Path, check: Callable[[], None]) -> None:
    beside = target.with_name(target.name + ".part")
    try:
        with tarfile.open(beside, "w:gz", compresslevel=1) as archive:  # weights hardly compress
            for name, path in tree.files.items():
                check()
                archive.add(path, arcname=name, recursive=False)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _copy(tree: Merged, target: Path, check: Callable[[], None]) -> None:
    target.mkdir(parents=True)
    for name, path in tree.files.items():
        check()
        if path.is_dir() and not path.is_symlink():
            (target / name).mkdir(exist_ok=True)
        else:
            shutil.copy2(path, target / name, follow_symlinks=False)
