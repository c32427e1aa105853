# SPDX-License-Identifier: Apache-2.0
"""Trailer of a metadata file: checksum of the file, and the sizes of the checkpoint's files.

A metadata file is a pickle, as PyTorch writes it. The trailer is appended to it, where PyTorch does
not read it:

    {"save": "3f", "files": {"3f_0_0.distcp": 22906}}     one line of JSON
    1c291ca3                                              CRC-32 of all before this line

So the files of a checkpoint can be counted without reading the pickle, and any changed bit of the
metadata is found.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from smdist.modelparallel.torch.checkpoint.save_numbers import is_number, number_of

FORMAT: Final = "smdist.checkpoint.2"  # a pickle with this word in it has a trailer
_NAMES: Final = ("save", "files")
_CHECKSUM: Final = 9  # eight digits and the end of the line


@dataclass(frozen=True, slots=True)
class Trailer:
    """Trailer of a metadata file.

    Attributes:
        save: Number of the save.
        files: Size of each file with values, in bytes, by name.
    """

    save: str
    files: Mapping[str, int]


def with_trailer(pickled: bytes, trailer: Trailer) -> bytes:
    """Return the contents of a metadata file.

    Args:
        pickled: PyTorch's metadata as a pickle.
        trailer: Number of the save and its files.
    """
    line = json.dumps({"save": trailer.save, "files": dict(trailer.files)})
    data = b"%b\n%b\n" % (pickled, line.encode())
    return b"%b%08x\n" % (data, zlib.crc32(data))


def split_trailer(data: bytes) -> tuple[bytes, Trailer | None]:
    """Return the pickle and the trailer of a metadata file.

    Args:
        data: Contents of the file.

    Returns:
        The pickle, and the trailer; None for a file without one, as PyTorch and older versions
        write it.

    Raises:
        ValueError: The file is not whole, or its checksum is wrong.
    """
    if data.endswith(b"."):  # end of a pickle
        if FORMAT.encode() in data:
            raise ValueError("the file is too short: its checksum is missing")
        return data, None
    body, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
    if not data or checksum != b"%08x\n" % zlib.crc32(body):
        raise ValueError("its checksum is wrong, or the file is too short")
    pickled, line, _ = body.rsplit(b"\n", 2)
    return pickled, _trailer(line)


def _trailer(line: bytes) -> Trailer:
    try:
        found = json.loads(line)
    except RecursionError as error:
        raise ValueError("its list of files is nested too deeply") from error
    save, files = (found.get(name) if isinstance(found, dict) else None for name in _NAMES)
    if not isinstance(save, str) or not is_number(save) or not isinstance(files, dict):
        raise ValueError("its list of files is wrong")
    are_sizes = all(type(size) is int and size >= 0 for size in files.values())
    if not are_sizes or {number_of(name) for name in files} - {save}:
        raise ValueError("its list of files is wrong")
    return Trailer(save, files)
