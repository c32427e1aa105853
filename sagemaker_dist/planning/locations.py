# SPDX-License-Identifier: Apache-2.0
"""Reading of URIs: file:// for this machine, s3:// for Amazon S3."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

FILE: Final = "file://"
S3: Final = "s3://"


def directory_of(uri: str) -> str:
    """Return the decoded path of a file:// URI; any other text is returned unchanged."""
    return unquote(uri.removeprefix(FILE)) if uri.startswith(FILE) else uri


def scheme_of(uri: str) -> str:
    """Return the part of a URI before "://", or "" for a path."""
    return uri.partition("://")[0] if "://" in uri else ""


def corrected_s3_uri(uri: str) -> str | None:
    """Return the corrected form of a misspelt S3 URI: s3://bucket for s3:/bucket or s3//bucket.

    Returns None for all other texts.
    """
    match = re.match(r"(?i)s3(?::/{0,2}|//)(?=[^/])", uri)
    return None if match is None or uri.startswith(S3) else S3 + uri[match.end() :]
