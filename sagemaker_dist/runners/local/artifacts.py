# SPDX-License-Identifier: Apache-2.0
"""Collection of a job's model and output data: merges the files of all hosts, as SageMaker does."""

from __future__ import annotations

import filecmp
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sagemaker_dist.planning import LocalJob
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.opt_ml_tree import HostTree
from sagemaker_dist.runners.protocol import NO_MODEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Files of several hosts, merged into one directory tree.

    Attributes:
        files: Path in the merged tree -> file of a host. Each directory comes before the
            paths below it.
        clashes: Paths at which two hosts wrote different files; `files` has the first host's.
    """

    files: dict[str, Path]
    clashes: tuple[str, ...]


def merge(roots: Iterable[Path]) -> Merged:
    """Return the files of directory trees, one per host, merged into one tree.

    At a path where hosts have different files, the first host's file is used. `roots` are the
    directories, in the order of the hosts.
    """
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


class Cancelled(Exception):  # noqa: N818 - not an error
    """The job was stopped during the download of data or the writing of its model."""


def gather(
    folder: JobFolder,
    job: LocalJob,
    trees: list[HostTree],
    log: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write the model and the output data of a job to its output directory.

    Args:
        folder: Folder of the job.
        job: Plan of the job, which names the output directory and the format of the model.
        trees: The /opt/ml of each host; the files of all hosts are merged.
        log: Function that receives lines for the job's log.
        check: Function that is called before each file. It raises Cancelled to end the writing.

    Raises:
        Cancelled: `check` raised it; no partial archive is left.
        OSError: The disk is full, or a file cannot be read or written.
    """
    model, data = merge(t.model for t in trees), merge(t.output_data for t in trees)
    for name in (*model.clashes, *data.clashes):
        log(f"hosts wrote different files {name}; the first host's file is used")
    output = folder.output(job)
    output.mkdir(parents=True, exist_ok=True)
    pack = _pack if job.compress else _copy
    if not model.files:
        log(f"{NO_MODEL.partition(' ')[2]}: SM_MODEL_DIR is empty on every host")
    pack(model, folder.model(job), check)
    if data.files:
        pack(data, output / ("output.tar.gz" if job.compress else "data"), check)


def _walk(root: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _same(first: Path, second: Path) -> bool:
    if first.is_symlink() or second.is_symlink():
        both = first.is_symlink() and second.is_symlink()
        return both and first.readlink() == second.readlink()
    if first.is_dir() or second.is_dir():
        return first.is_dir() and second.is_dir()
    return filecmp.cmp(first, second, shallow=False)


def _pack(tree: Merged, target: Path, check: Callable[[], None]) -> None:
    beside = target.with_name(target.name + ".part")
    try:
        with tarfile.open(
            beside, "w:gz", compresslevel=1
        ) as archive:  # fast: more effort hardly makes weights smaller
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
