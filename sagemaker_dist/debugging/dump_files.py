# SPDX-License-Identifier: Apache-2.0
"""Files that the ranks of a job write for its analysis, in a folder or an archive.

smdist-debug/operations-rank-3.json   the last operations of rank 3
smdist-debug/stacks-rank-3.txt        the Python stacks of its threads
smdist-debug/state-rank-3.json        the state of its process, if that does not run
smdist-debug.request                  ranks write the files anew when this file changes
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from sagemaker_dist.debugging.operations import RankHistory, parse_history
from sagemaker_dist.errors import JobError

FOLDER: Final = "smdist-debug"
MAX_BYTES: Final = 16 << 20  # maximum of one file; a rank writes less than one mebibyte
MAX_ARCHIVE_BYTES: Final = 1 << 30  # read of an archive, uncompressed
_NAME: Final = re.compile(r"(operations|stacks|state)-rank-(\d{1,9})\.(json|txt)")


@dataclass(slots=True)
class Dumps:
    """Files of all ranks.

    Attributes:
        histories: The last operations of each rank.
        stacks: The Python stacks of each rank, as faulthandler writes them.
        states: The last reported state of a process that did not run, by rank: a dict with the keys
            "letter", "seconds" and "text".
        notes: Sentences about files and parts of archives that were not read.
    """

    histories: dict[int, RankHistory] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, content: bytes) -> None:
        """Add a file, of which the name counts; files with other names are ignored.

        Raises:
            JobError: The file has the name of a rank's history, and is none.
        """
        match = _NAME.fullmatch(PurePosixPath(name).name)
        if match is None:
            return
        if len(content) > MAX_BYTES:
            self.notes.append(f"{name} is left out: it is longer than {MAX_BYTES:,} bytes")
            return
        kind, rank = match[1], int(match[2])
        if kind == "operations":
            self.histories[rank] = parse_history(content, name)
        elif kind == "stacks":
            self.stacks[rank] = content.decode("utf-8", errors="replace")
        else:
            self.states[rank] = _state(content)


def _state(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_dumps(path: Path) -> Dumps:
    """Read the files below a folder, or in an archive such as output.tar.gz.

    Archives named output.tar.gz below the folder are read, too. Links are not followed.

    Raises:
        JobError: The path does not exist, or has a file that cannot be read.
    """
    dumps = Dumps()
    try:
        for each in [path] if path.is_file() else sorted(_files_below(path)):
            if each.name.endswith(".tar.gz"):
                with each.open("rb") as file:
                    read_tar(file, str(each), dumps)
            elif _NAME.fullmatch(each.name):
                with each.open("rb") as file:
                    dumps.add(str(each), file.read(MAX_BYTES + 1))
    except OSError as error:
        raise _unreadable(str(path), error.strerror or str(error)) from error
    return dumps


def _files_below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        raise FileNotFoundError(0, "there is no such file or folder")
    for folder, _, names in os.walk(path):
        for name in names:
            each = Path(folder, name)
            is_ours = name == "output.tar.gz" or _NAME.fullmatch(name)
            if is_ours and not each.is_symlink() and each.is_file():
                yield each


def read_tar(file: IO[bytes], name: str, dumps: Dumps) -> None:
    """Add the ranks' files in a compressed archive to `dumps`; `name` is for errors.

    The archive is read once from its beginning, and nothing is unpacked. What comes after its
    first GiB is left out, with a note.

    Raises:
        JobError: It is no such archive, or has a file that cannot be read.
    """
    try:
        content: Any = _BoundedContent(file)
        with tarfile.open(fileobj=content, mode="r:") as archive:
            for member in archive:
                is_ours = member.isfile() and _NAME.fullmatch(PurePosixPath(member.name).name)
                found = archive.extractfile(member) if is_ours else None
                if found is not None:
                    dumps.add(member.name, found.read(MAX_BYTES + 1))
    except _TooLongError:
        dumps.notes.append(
            f"{name} is cut: at most its first {MAX_ARCHIVE_BYTES:,} bytes, uncompressed, were read"
        )
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise _unreadable(name, str(error)) from error


class _TooLongError(Exception):
    """The archive is longer than what is read of it."""


class _BoundedContent:
    """Uncompressed content of an archive, as tarfile reads it, up to a maximum.

    A header of an archive may have any length, and tarfile reads it whole: a single read has a
    maximum, too.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._content = gzip.GzipFile(fileobj=file, mode="rb")

    def tell(self) -> int:
        return self._content.tell()

    def seek(self, position: int) -> int:
        if position > MAX_ARCHIVE_BYTES:
            raise _TooLongError
        return self._content.seek(position)

    def read(self, size: int) -> bytes:
        if size > MAX_BYTES + tarfile.RECORDSIZE or self.tell() + size > MAX_ARCHIVE_BYTES:
            raise _TooLongError
        return self._content.read(size)


def request_dumps(output_data: Path) -> None:
    """Request that the ranks of a host write their files anew, which takes about a second.

    `output_data` is the directory of the host's output data, in which the files will be.

    Raises:
        JobError: The request cannot be written.
    """
    request = output_data / f"{FOLDER}.request"
    try:
        beside = request.with_suffix(".new")
        beside.write_bytes(b"")
        beside.replace(request)
    except OSError as error:
        raise _unreadable(str(request), error.strerror or str(error)) from error


def _unreadable(name: str, why: str) -> JobError:
    return JobError(
        f"{name} cannot be used",
        why,
        f"Pass a folder or an archive with the files of {FOLDER}, or the name of a job",
        kind="unreadable",
    )
