# SPDX-License-Identifier: Apache-2.0
"""URIs: file:// for this machine, s3:// for Amazon S3."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

FILE: Final = "file://"
S3: Final = "s3://"


def directory_of(uri: str) -> str:
    """Return the path of a file:// URI, decoded; other texts stay."""
    return unquote(uri.removeprefix(FILE)) if uri.startswith(FILE) else uri


def scheme_of(uri: str) -> str:
    """Return the part before "://", or "" for a bare path."""
    return uri.partition("://")[0] if "://" in uri else ""


def meant_place(uri: str) -> str | None:
    """Return the S3 URI meant by a misspelt one (s3:/bucket, s3//bucket, S3://bucket), or None."""
    match = re.match(r"(?i)s3(?::/{0,2}|//)(?=[^/])", uri)
    return None if match is None or uri.startswith(S3) else S3 + uri[match.end() :]
