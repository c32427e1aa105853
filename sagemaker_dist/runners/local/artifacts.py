# SPDX-License-Identifier: Apache-2.0
"""Collection of a job's model and output data: merges the files of all hosts, as SageMaker does."""

from __future__ import annotations

import io
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from sagemaker_dist.planning import LocalJob
from sagemaker_dist.runners.local.job_folder import JobFolder
from sagemaker_dist.runners.local.opt_ml_tree import MODEL, OUTPUT_DATA, HostTree
from sagemaker_dist.runners.local.tree_reader import TreeEntry, entries_below
from sagemaker_dist.runners.protocol import NO_MODEL

_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Files of several hosts, merged into one directory tree.

    Attributes:
        files: Path in the merged tree -> entry of a host's tree. Each directory comes before the
            paths below it.
        clashes: Paths at which two hosts wrote different files; `files` has the first host's.
        left_out: Paths of FIFOs, sockets and devices, which are not in `files`.
    """

    files: dict[str, TreeEntry]
    clashes: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def merge(
    roots: Iterable[Path], directory: str, check: Callable[[], None] = lambda: None
) -> Merged:
    """Return the files of one directory of several trees, merged into one tree.

    At a path where hosts have different files, the first host's file is used. Links are kept as
    links, and are never followed.

    Args:
        roots: Root directories of the trees, in the order of the hosts.
        directory: Path of the directory below each root.
        check: Function that is called again and again; an exception that it raises ends the work.

    Raises:
        JobError: A host has replaced the directory by a link or a file.
        OSError: A directory is missing, or a file cannot be read.
    """
    files: dict[str, TreeEntry] = {}
    clashes: list[str] = []
    left_out: list[str] = []
    for entry in (each for root in roots for each in entries_below(root, directory)):
        name = entry.name
        above = (files.get(str(parent)) for parent in PurePosixPath(name).parents)
        if entry.is_special:
            left_out.append(name)
        elif any(each and not each.is_directory for each in above):
            continue  # a lower host has a file or a link where this one has a directory
        elif files.setdefault(name, entry) is not entry and not _same(files[name], entry, check):
            clashes.append(name)
    unique = (tuple(dict.fromkeys(each)) for each in (clashes, left_out))
    return Merged(files=files, clashes=next(unique), left_out=next(unique))


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
        check: Function that is called before each file and each MiB. It raises Cancelled to end
            the writing.

    Raises:
        Cancelled: `check` raised it; no partial archive is left.
        JobError: A host has replaced the directory of its model or output data by a link.
        OSError: The disk is full, or a file cannot be read or written.
    """
    roots = [tree.root for tree in trees]
    model, data = merge(roots, MODEL, check), merge(roots, OUTPUT_DATA, check)
    for name in (*model.clashes, *data.clashes):
        log(f"hosts wrote different files {name}; the first host's file is used")
    for name in (*model.left_out, *data.left_out):
        log(f"{name} is left out: it is a FIFO, a socket or a device")
    output = folder.output(job)
    output.mkdir(parents=True, exist_ok=True)
    pack = _pack if job.compress else _copy
    if not model.files:
        checkpoints = folder.checkpoints(job)
        has_any = next(checkpoints.iterdir(), None) if checkpoints.is_dir() else None
        kept = f"; checkpoints are in {checkpoints}" if has_any else ""
        log(f"{NO_MODEL.partition(' ')[2]}: SM_MODEL_DIR is empty on every host{kept}")
    pack(model, folder.model(job), check)
    if data.files:
        pack(data, output / ("output.tar.gz" if job.compress else "data"), check)


def has_model(folder: JobFolder, job: LocalJob) -> bool:
    """Return whether a job that has ended has written a model that is not empty."""
    path = folder.model(job)
    try:
        if not job.compress:
            return any(path.iterdir())
        with tarfile.open(path) as archive:
            return archive.next() is not None
    except (OSError, tarfile.TarError):
        return False


def _same(first: TreeEntry, second: TreeEntry, check: Callable[[], None]) -> bool:
    kinds = [(each.is_directory, each.is_link, each.target) for each in (first, second)]
    if kinds[0] != kinds[1]:
        return False
    if first.is_directory or first.is_link:
        return True
    if first.status.st_size != second.status.st_size:
        return False
    with first.opened() as one, second.opened() as other:
        while data := one.read(_CHUNK_BYTES):
            check()
            if data != other.read(_CHUNK_BYTES):
                return False
        return not other.read(1)


def _pack(tree: Merged, target: Path, check: Callable[[], None]) -> None:
    beside = target.with_name(target.name + ".part")
    written: dict[tuple[int, int], str] = {}
    try:
        with tarfile.open(
            beside, "w:gz", compresslevel=1
        ) as archive:  # fast: more effort hardly makes weights smaller
            for name, entry in tree.files.items():
                check()
                _add(archive, name, entry, written, check)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _add(
    archive: tarfile.TarFile,
    name: str,
    entry: TreeEntry,
    written: dict[tuple[int, int], str],
    check: Callable[[], None],
) -> None:
    """Add one entry of a host's tree to an archive.

    `written` has the name of each file in the archive that has several names, by device and inode:
    of such a file the archive has the content once. This function adds to it.
    """
    status, member, first = entry.status, tarfile.TarInfo(name), name
    member.mode, member.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
    member.uid, member.gid = status.st_uid, status.st_gid
    if status.st_nlink > 1:
        first = written.setdefault((status.st_dev, status.st_ino), name)
    if entry.is_directory:
        member.type = tarfile.DIRTYPE
    elif entry.is_link:
        member.type, member.linkname = tarfile.SYMTYPE, entry.target
    elif first != name:
        member.type, member.linkname = tarfile.LNKTYPE, first
    else:
        with entry.opened() as file:
            member.size = os.fstat(file.fileno()).st_size
            archive.addfile(member, _Checked(file, check))
        return
    archive.addfile(member)


class _Checked(io.BufferedReader):
    """File that calls a function after each MiB; the function may raise an exception."""

    def __init__(self, file: BinaryIO, check: Callable[[], None]) -> None:
        super().__init__(io.FileIO(file.fileno(), closefd=False))
        self._check = check
        self._num_unchecked = 0

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes of the file, at most `size`."""
        data = super().read(size)
        self._num_unchecked += len(data)
        if self._num_unchecked >= _CHUNK_BYTES:
            self._num_unchecked = 0
            self._check()
        return data


def _copy(tree: Merged, target: Path, check: Callable[[], None]) -> None:
    target.mkdir(parents=True)
    for name, entry in tree.files.items():
        check()
        if entry.is_directory:
            (target / name).mkdir(exist_ok=True)
        elif entry.is_link:
            (target / name).symlink_to(entry.target)
        else:
            with entry.opened() as file, (target / name).open("xb") as copy:
                shutil.copyfileobj(_Checked(file, check), copy, _CHUNK_BYTES)
                os.fchmod(copy.fileno(), entry.status.st_mode & 0o777)
            times = (entry.status.st_atime_ns, entry.status.st_mtime_ns)
            os.utime(target / name, ns=times)
