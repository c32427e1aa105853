# SPDX-License-Identifier: Apache-2.0
"""Places in S3: how they are written, and in which region they lie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sagemaker_dist.errors import OptionError
from sagemaker_dist.planning.locations import S3, meant_place, scheme_of
from sagemaker_dist.planning.service.limits import shown
from sagemaker_dist.planning.service.terms import Terms

# Bucket naming rules of the S3 user guide, 2026-11-21; old buckets of us-east-1 have capitals,
# underscores and up to 255 characters.
_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9_-]")


def place_faults(terms: Terms, name: str, uri: Any) -> Iterator[OptionError]:
    """What is wrong with an argument that names a place in S3."""
    if uri is None:
        return
    what, scheme = f"{name} is {shown(uri)}", scheme_of(str(uri))
    meant = meant_place(str(uri))
    if not isinstance(uri, str):
        yield OptionError(what, "it is no text", "Pass a str")
    elif meant is not None:
        yield OptionError(what, f"a place in S3 begins with {S3}", f"Did you mean {meant!r}?")
    elif scheme == "s3" and not uri.removeprefix(S3).partition("/")[0]:
        yield OptionError(what, "it names no bucket", f"Pass {S3}, a bucket and a prefix")
    elif scheme == "s3":
        yield from bucket_faults(terms, what, uri)
    elif scheme != "https":
        known = {
            "": "a bare path does not say where it lies",
            "file": "an instance of SageMaker cannot write to this machine's disk",
        }
        why = known.get(scheme, f"{scheme}:// is not written to")
        yield OptionError(what, why, f"Pass {S3}, a bucket and a prefix")


def bucket_faults(terms: Terms, what: str, uri: str) -> Iterator[OptionError]:
    """A bucket that cannot be, or lies in another region than the job."""
    bucket, most = uri.removeprefix(S3).partition("/")[0], terms.limit("S3Uri").most
    there = terms.bucket_regions.get(bucket)
    if bucket and not _BUCKET.fullmatch(bucket) and not bucket.startswith("arn:"):
        yield OptionError(
            what,
            f"{shown(bucket)} is no name of a bucket",
            "Pass 3 to 63 small letters, digits, '.' and '-'",
        )
    elif most is not None and len(uri) > most:
        yield OptionError(what, f"it has {len(uri)} characters of at most {most}", "Shorten it")
    elif terms.region and there and there != terms.region:
        yield OptionError(
            what,
            f"its bucket lies in {there} and the job runs in {terms.region}",
            f"Pass a place in {terms.region}, or a session of {there}",
        )
