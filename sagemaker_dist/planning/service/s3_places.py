# SPDX-License-Identifier: Apache-2.0
"""Checks of S3 URIs: their form, and the region of their bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sagemaker_dist.errors import OptionError, within
from sagemaker_dist.planning.locations import S3, meant_place, scheme_of
from sagemaker_dist.planning.service.limits import shown
from sagemaker_dist.planning.service.terms import Terms

# Bucket naming rules of the S3 user guide, 2026-11-21; old buckets of us-east-1 have capitals,
# underscores and up to 255 characters.
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9_-]")


def place_faults(terms: Terms, name: str, uri: Any) -> Iterator[OptionError]:
    """Yield faults of an argument that is an S3 URI."""
    if uri is None:
        return
    what, scheme = f"{name} is {shown(uri)}", scheme_of(str(uri))
    meant = meant_place(str(uri))
    if not isinstance(uri, str):
        yield OptionError(what, "it is not a str", "Pass a str", about=name)
    elif meant is not None:
        yield OptionError(
            what, f"an S3 URI begins with {S3}", f"Did you mean {meant!r}?", about=name
        )
    elif scheme == "s3" and not uri.removeprefix(S3).partition("/")[0]:
        yield OptionError(
            what, "it does not name a bucket", f"Pass {S3}, a bucket and a prefix", about=name
        )
    elif scheme == "s3":
        yield from within(bucket_faults(terms, what, uri), name)
    elif scheme != "https":
        known = {
            "": "a bare path is ambiguous",
            "file": "an instance of SageMaker cannot write to this machine's disk",
        }
        why = known.get(scheme, f"{scheme}:// is not supported")
        yield OptionError(what, why, f"Pass {S3}, a bucket and a prefix", about=name)


def bucket_faults(terms: Terms, what: str, uri: str) -> Iterator[OptionError]:
    """Yield a fault if the bucket's name is invalid or its region differs from the job's."""
    bucket, most = uri.removeprefix(S3).partition("/")[0], terms.limit("S3Uri").most
    there = terms.bucket_regions.get(bucket)
    if bucket and not _BUCKET.fullmatch(bucket) and not bucket.startswith("arn:"):
        yield OptionError(
            what,
            f"{shown(bucket)} is not a bucket name",
            "Pass 3 to 63 lower-case letters, digits, '.' and '-'",
        )
    elif most is not None and len(uri) > most:
        yield OptionError(what, f"it has {len(uri)} characters of at most {most}", "Shorten it")
    elif terms.region and there and there != terms.region:
        yield OptionError(
            what,
            f"its bucket is in {there}, but the job runs in {terms.region}",
            f"Pass a bucket in {terms.region}, or a session in {there}",
        )
