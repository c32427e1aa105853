# SPDX-License-Identifier: Apache-2.0
"""The user's code as one tarball in S3, with the layout of SageMaker's SDK.

The content of source_dir is at the root, next to the dependencies. Links are followed, as for local
jobs; caches and special files are left out. The same files always give the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.aws_session import aws_refusals

TARBALL: Final = "sourcedir.tar.gz"
_CHUNK_BYTES: Final = 1 << 20
_DIGITS: Final = 32  # 128 bits
_NEVER: Final = frozenset({"__pycache__", ".git", ".ipynb_checkpoints"})


@contextmanager
def source_tarball(
    entry_point: str | Path, source_dir: str | Path | None, dependencies: Sequence[str | Path] = ()
) -> Iterator[Path]:
    """Write the code to a temporary tarball, yield its path, and remove it at the end.

    Args:
        entry_point: Path of the script, used if `source_dir` is None.
        source_dir: Directory whose content is packed; None to pack the script alone.
        dependencies: Files and directories that are packed next to the code.

    Raises:
        SetupError: A file cannot be read, or was removed in the meantime.
    """
    with TemporaryDirectory(prefix="sagemaker-dist-source-") as folder:
        path = Path(folder) / TARBALL
        try:
            _write(path, _places(entry_point, source_dir, dependencies))
        except OSError as error:
            raise SetupError(
                f"the code of the job cannot be packed: {error.filename}",
                error.strerror or str(error),
                "Make it readable, or move it out of source_dir",
                kind="missing_file" if isinstance(error, FileNotFoundError) else "unreadable_file",
            ) from error
        yield path


def digest_of(tarball: Path) -> str:
    """Return a digest of a tarball as 32 hexadecimal digits: other bytes have another digest."""
    digest = hashlib.sha256()
    with tarball.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            digest.update(data)
    return digest.hexdigest()[:_DIGITS]


def upload_source(
    session: Any, tarball: Path, uri: str, *, kms_key: str | None = None, owner: str | None = None
) -> None:
    """Upload the tarball of the code to an S3 URI, from which the job reads it.

    Args:
        session: boto3.Session.
        tarball: Path of the tarball.
        uri: S3 URI of the object to write.
        kms_key: KMS key that encrypts the object, or None.
        owner: Number of the account that must own the bucket, or None. Pass it for a bucket with a
            default name: a stranger could have created a bucket of this name.

    Raises:
        SetupError: S3 refuses the upload, or does not answer.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    extra = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key} if kms_key else {}
    extra |= {"ExpectedBucketOwner": owner} if owner else {}
    with aws_refusals(session, "Amazon S3"), tarball.open("rb") as body:
        s3 = session.client("s3")
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=body, **extra)
        except s3.exceptions.NoSuchBucket:
            raise SetupError(
                f"there is no bucket {bucket!r}",
                "the job's code is uploaded there",
                f"Run: aws s3 mb s3://{bucket}, or pass output_path or code_location",
                kind="not_found",
            ) from None


def _write(path: Path, places: Iterator[tuple[str, Path]]) -> None:
    with (
        path.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
        tarfile.open(
            fileobj=packed, mode="w", format=tarfile.PAX_FORMAT, dereference=True
        ) as tarball,
    ):
        for name, place in places:
            for member, found in _members(name, place, (os.path.realpath(place.parent),)):
                tarball.add(found, arcname=member, recursive=False, filter=_plain)


def _places(
    entry_point: str | Path, source_dir: str | Path | None, dependencies: Sequence[str | Path]
) -> Iterator[tuple[str, Path]]:
    if source_dir is None:
        yield Path(entry_point).name, Path(entry_point)
    else:
        for place in sorted(Path(source_dir).iterdir()):
            yield place.name, place
    for each in dependencies:
        yield Path(os.path.normpath(Path(each).absolute())).name, Path(each)


def _members(name: str, place: Path, above: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Yield a path and all paths below it, each with its name in the tarball.

    A link to a directory that contains the link is left out.

    Args:
        name: Name of the path in the tarball.
        place: The path.
        above: Resolved paths of the directories that contain this path.
    """
    real = os.path.realpath(place)
    if place.name in _NEVER or real in above or not (place.is_dir() or place.is_file()):
        return
    yield name, place
    if place.is_dir():
        for each in sorted(place.iterdir()):
            yield from _members(f"{name}/{each.name}", each, (*above, real))


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return a tarball's member with owner and time set to 0, because they differ by machine."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
