# SPDX-License-Identifier: Apache-2.0
"""How a place is written: file:// for this machine, s3:// for Amazon S3."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

FILE: Final = "file://"
S3: Final = "s3://"


def directory_of(uri: str) -> str:
    """The path that a file:// URI names; what `Path.as_uri` encoded is decoded."""
    return unquote(uri.removeprefix(FILE)) if uri.startswith(FILE) else uri


def scheme_of(uri: str) -> str:
    """What stands before "://", or "" for a bare path."""
    return uri.partition("://")[0] if "://" in uri else ""
