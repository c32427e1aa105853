# SPDX-License-Identifier: Apache-2.0
"""Files that the ranks of a job write for its analysis, in a folder or an archive.

smdist-debug/operations-rank-3.json   the last operations of rank 3
smdist-debug/stacks-rank-3.txt        the Python stacks of its threads
smdist-debug/state-rank-3.json        the state of its process, if that does not run
smdist-debug.request                  ranks write the files anew when this file changes
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from sagemaker_dist.debugging.operations import RankHistory, parse_history
from sagemaker_dist.errors import JobError

FOLDER: Final = "smdist-debug"
MAX_BYTES: Final = 16 << 20  # maximum of one file; a rank writes less than one mebibyte
_NAME: Final = re.compile(r"(operations|stacks|state)-rank-(\d{1,9})\.(json|txt)")


@dataclass(slots=True)
class Dumps:
    """Files of all ranks.

    Attributes:
        histories: The last operations of each rank.
        stacks: The Python stacks of each rank, as faulthandler writes them.
        states: The last reported state of a process that did not run, by rank: a dict with the keys
            "letter", "seconds" and "text".
    """

    histories: dict[int, RankHistory] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, content: bytes) -> None:
        """Add a file, of which the name counts; files with other names are ignored.

        Raises:
            JobError: The file has the name of a rank's history, and is none.
        """
        match = _NAME.fullmatch(PurePosixPath(name).name)
        if match is None or len(content) > MAX_BYTES:
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

    The archive is read once from its beginning to its end, and nothing is unpacked.

    Raises:
        JobError: It is no such archive, or has a file that cannot be read.
    """
    try:
        with tarfile.open(fileobj=file, mode="r|gz") as archive:
            for member in archive:
                is_ours = member.isfile() and _NAME.fullmatch(PurePosixPath(member.name).name)
                content = archive.extractfile(member) if is_ours else None
                if content is not None:
                    dumps.add(member.name, content.read(MAX_BYTES + 1))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _unreadable(name, str(error)) from error


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
