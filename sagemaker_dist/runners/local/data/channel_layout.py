# SPDX-License-Identifier: Apache-2.0
"""Objects of a channel: their paths in the channel's directory, their order, and their hosts.

The path of an S3 object is the part of its key below the prefix:

    prefix   key          path in the channel's directory
    p/       p/a/b        a/b
    p        p/a/b        a/b
    p/a.csv  p/a.csv      a.csv       the prefix names one object
    p        p2/a         p2/a        p2/a has the prefix p, because S3 compares plain text;
                                      AWS does not document the path of such an object
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from random import Random
from typing import TypeVar

from sagemaker_dist.errors import JobError, KeyPath

_Object = TypeVar("_Object")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One object of a channel: an object in S3, or a file of this machine.

    Attributes:
        key: Key in S3, or path on this machine.
        name: Path in the directory of the channel.
        num_bytes: Size of the object.
    """

    key: str
    name: str
    num_bytes: int


def lay_out(
    what: str, prefix: str, objects: Iterable[tuple[str, int]], about: KeyPath = ()
) -> list[Item]:
    """Return the objects of a channel with their paths in its directory, sorted by key.

    `objects` are pairs of a key below `prefix` and a size in bytes. Keys that end in "/" are left
    out: S3 browsers create them for directories. `what` is the text with which errors begin, and
    `about` the path of the channel in the request, for errors.

    Raises:
        JobError: There are no objects, a key cannot be a path, or two keys need the same path.
    """
    kept = sorted((each for each in objects if not each[0].endswith("/")), key=_key_bytes)
    if not kept:
        why = "there are no objects below this prefix"
        raise JobError(what, why, "Correct the prefix", about, "no_objects")
    items = [Item(key=key, name=_name(key, prefix), num_bytes=size) for key, size in kept]
    seen: dict[str, str] = {}
    for item in items:
        _check_name(what, item, about)
        if seen.setdefault(item.name, item.key) != item.key:
            _refuse_clash(what, seen[item.name], item.key, about)
    for item in items:
        for above in PurePosixPath(item.name).parents:
            if str(above) in seen:
                _refuse_clash(what, seen[str(above)], item.key, about)
    return items


def files_below(root: Path) -> list[tuple[str, Path]]:
    """Return the files of a channel on this machine: pairs of the path below `root` and the file.

    The order is that of S3's listings: by the bytes of the path. If `root` is a file, it is the
    only one. Links are followed, but not to a directory that contains the link.

    Raises:
        OSError: A directory cannot be read.
    """
    if not root.is_dir():
        return [(root.name, root)]
    found = [(str(path.relative_to(root)), path) for path in _walk(root, frozenset())]
    return sorted(found, key=lambda each: os.fsencode(each[0]))


def part_of(objects: Sequence[_Object], host: int, num_hosts: int) -> list[_Object]:
    """Return the objects that one host gets of a channel with ShardedByS3Key.

    These are the object of index `host`, and every `num_hosts`-th object after it.
    """
    return list(objects[host::num_hosts])


def in_order(objects: Sequence[_Object], epoch: int, seed: int | None) -> list[_Object]:
    """Return the objects in the order of one epoch: unchanged if `seed` is None, else shuffled.

    The order depends on seed and epoch only.
    """
    ordered = list(objects)
    if seed is not None:
        Random(f"{seed}-{epoch}").shuffle(ordered)  # noqa: S311 - not for cryptography
    return ordered


def _key_bytes(entry: tuple[str, int]) -> bytes:
    return entry[0].encode(errors="surrogateescape")


def _name(key: str, prefix: str) -> str:
    rest = key.removeprefix(prefix)
    is_below = not prefix or prefix.endswith("/") or rest.startswith("/")
    name = rest if is_below else key[prefix.rfind("/") + 1 :]
    return str(PurePosixPath(name.lstrip("/")))


def _check_name(what: str, item: Item, about: KeyPath) -> None:
    path = PurePosixPath(item.name)
    if ".." in path.parts or "\0" in item.name or not path.parts:
        raise JobError(
            what,
            f"the key {item.key!r} cannot be a path in a directory",
            "Rename the object, or pass a prefix that leaves it out",
            about,
            "invalid_key",
        )


def _refuse_clash(what: str, first: str, second: str, about: KeyPath) -> None:
    raise JobError(
        what,
        f"the keys {first!r} and {second!r} have the same path in a directory",
        "Rename one of the objects, or pass a prefix that leaves one of them out",
        about,
        "conflict",
    )


def _walk(directory: Path, above: frozenset[str]) -> Iterator[Path]:
    real = os.path.realpath(directory)
    if real in above:
        return
    for entry in os.scandir(directory):
        if entry.is_dir():
            yield from _walk(Path(entry.path), above | {real})
        elif entry.is_file():
            yield Path(entry.path)
