# SPDX-License-Identifier: Apache-2.0
"""The user's code as one tarball in S3, laid out as SageMaker's SDK does.

    source_dir's content at the root, dependencies beside it by their names

The same files make the same bytes, so that a job that is submitted again uploads
what is there already.
"""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sagemaker_dist.errors import SetupError
from sagemaker_dist.packaging.aws import aws_refusals

TARBALL: Final = "sourcedir.tar.gz"
_NEVER: Final = ("__pycache__", ".git", ".ipynb_checkpoints")


@contextmanager
def source_tarball(
    entry_point: str | Path, source_dir: str | Path | None, dependencies: Sequence[str | Path] = ()
) -> Iterator[Path]:
    """A temporary tarball of the code, removed at the end."""
    with TemporaryDirectory(prefix="sagemaker-dist-source-") as folder:
        path = Path(folder) / TARBALL
        with (
            path.open("wb") as file,
            gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tarball,
        ):
            for name, place in _members(entry_point, source_dir, dependencies):
                tarball.add(place, arcname=name, filter=_plain)
        yield path


def upload_source(session: Any, tarball: Path, uri: str, kms_key: str | None = None) -> None:
    """Put the tarball where the job looks for it.

    Raises:
        SetupError: S3 refuses, or cannot be asked.
    """
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    extra = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key} if kms_key else {}
    with aws_refusals(session, "Amazon S3"), tarball.open("rb") as body:
        s3 = session.client("s3")
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=body, **extra)
        except s3.exceptions.NoSuchBucket:
            raise SetupError(
                f"there is no bucket {bucket!r}",
                "the job's code is uploaded there",
                f"Run: aws s3 mb s3://{bucket}, or pass output_path or code_location",
            ) from None


def _members(
    entry_point: str | Path, source_dir: str | Path | None, dependencies: Sequence[str | Path]
) -> Iterator[tuple[str, Path]]:
    if source_dir is None:
        yield Path(entry_point).name, Path(entry_point)
    else:
        for place in sorted(Path(source_dir).iterdir()):
            yield place.name, place
    for each in dependencies:
        yield Path(each).resolve().name, Path(each)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without what changes from one machine to another: owners and times."""
    if Path(member.name).name in _NEVER:
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
