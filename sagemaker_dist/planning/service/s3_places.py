# SPDX-License-Identifier: Apache-2.0
"""Checks of S3 URIs: their syntax, and the region of their bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sagemaker_dist.errors import OptionError, within
from sagemaker_dist.planning.locations import S3, corrected_s3_uri, scheme_of
from sagemaker_dist.planning.service.limits import short_repr
from sagemaker_dist.planning.service.terms import Terms

# Bucket naming rules of the S3 user guide, 2026-11-21. Old buckets of us-east-1 may have capital
# letters, underscores and up to 255 characters.
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9_-]")


def place_faults(terms: Terms, name: str, uri: Any) -> Iterator[OptionError]:
    """Yield the faults of `uri`, the value of the argument `name`, which must be an S3 URI.

    A `uri` of None is not checked. `terms` has the region of the job.
    """
    if uri is None:
        return
    what, scheme = f"{name} is {short_repr(uri)}", scheme_of(str(uri))
    meant = corrected_s3_uri(str(uri))
    if not isinstance(uri, str):
        yield OptionError(what, "it is not a str", "Pass a str", about=name, kind="type")
    elif meant is not None:
        yield OptionError(
            what,
            f"an S3 URI begins with {S3}",
            f"Did you mean {meant!r}?",
            about=name,
            kind="unknown",
        )
    elif scheme == "s3" and not uri.removeprefix(S3).partition("/")[0]:
        yield OptionError(
            what,
            "the URI has no bucket",
            f"Pass {S3} followed by a bucket and a prefix",
            about=name,
            kind="incomplete",
        )
    elif scheme == "s3":
        yield from within(bucket_faults(terms, what, uri), name)
    elif scheme != "https":
        known = {
            "": ("it is a path, and an S3 URI is needed", "relative"),
            "file": (
                "an instance of SageMaker cannot write to the disk of this machine",
                "unsupported",
            ),
        }
        why, fault = known.get(scheme, (f"the scheme {scheme}:// is not supported", "unsupported"))
        hint = f"Pass {S3} followed by a bucket and a prefix"
        yield OptionError(what, why, hint, about=name, kind=fault)


def bucket_faults(terms: Terms, what: str, uri: str) -> Iterator[OptionError]:
    """Yield a fault if the bucket of an S3 URI has an invalid name or is in another region.

    A URI that is too long is a fault, too.

    Args:
        terms: Arguments of the job, with its region.
        what: First part of the message, such as "output_path is 's3://…'".
        uri: The S3 URI.
    """
    bucket, most = uri.removeprefix(S3).partition("/")[0], terms.limit("S3Uri").most
    there = terms.bucket_regions.get(bucket)
    if bucket and not _BUCKET.fullmatch(bucket) and not bucket.startswith("arn:"):
        yield OptionError(
            what,
            f"{short_repr(bucket)} is not a bucket name",
            "Pass 3 to 63 lower-case letters, digits, '.' and '-'",
        )
    elif most is not None and len(uri) > most:
        yield OptionError(
            what,
            f"it has {len(uri)} characters, and SageMaker allows at most {most}",
            "Shorten it",
            kind="too_long",
        )
    elif terms.region and there and there != terms.region:
        yield OptionError(
            what,
            f"its bucket is in region {there}, but the job runs in {terms.region}",
            f"Pass a bucket in {terms.region}, or a session in {there}",
            kind="region",
        )
