# SPDX-License-Identifier: Apache-2.0
"""Errors about input data that cannot be copied or downloaded, with channel, reason and hint."""

from __future__ import annotations

import errno
from typing import Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)

from sagemaker_dist.contract.redaction import without_login
from sagemaker_dist.errors import JobError, KeyPath
from sagemaker_dist.planning import LocalChannel

_GRANT: Final = "Use credentials that may list the bucket and read its objects: set AWS_PROFILE"
_SET: Final = "Set AWS_PROFILE, or run: aws configure"
_REMOVED: Final = (
    "an object was removed during the download",
    "Start the job again",
    "removed_object",
)
_DENIED: Final = ("access is denied", _GRANT, "access_denied")
_CODES: Final = {  # codes of S3's error responses, and of HEAD responses -> reason, hint, kind
    "NoSuchBucket": ("there is no such bucket", "Correct the bucket", "not_found"),
    "NoSuchKey": _REMOVED,
    "404": _REMOVED,
    "AccessDenied": _DENIED,
    "403": _DENIED,
    "ExpiredToken": (
        "the credentials have expired",
        "Log in again (aws sso login)",
        "bad_credentials",
    ),
    "InvalidObjectState": (
        "an object is archived",
        "Restore it first (aws s3api restore-object)",
        "archived_object",
    ),
}
_NO_CREDENTIALS: Final = (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    TokenRetrievalError,
)


def describe_channel(channel: LocalChannel) -> str:
    """Return a text for errors with the channel's name and the URI of its data."""
    return f"channel {channel.name!r} ({channel.uri})"


def path_of(channel: LocalChannel) -> KeyPath:
    """Return the path of a channel in the request of its job, for errors."""
    return "inputs", channel.name


def refused(channel: LocalChannel) -> str:
    """Return the beginning of errors about a channel: "channel NAME (URI) cannot be copied".

    If the data is in S3, the last word is "downloaded".
    """
    how = "copied" if channel.path else "downloaded"
    return f"{describe_channel(channel)} cannot be {how}"


def refusal(channel: LocalChannel, error: Exception) -> JobError:
    """Return the error about a channel whose data could not be read because of `error`."""
    why, hint, kind = _reason(error)
    return JobError(refused(channel), why, hint, path_of(channel), kind)


def _reason(error: Exception) -> tuple[str, str, str]:
    """Return the reason, the hint and the error kind for a JobError about `error`."""
    text = without_login(" ".join(str(error).split()).rstrip("."))
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code"))
        return _CODES.get(code, (text, "Check the credentials and the URI", "refused"))
    if isinstance(error, NoCredentialsError):
        return "there are no AWS credentials", _SET, "no_credentials"
    if isinstance(error, _NO_CREDENTIALS):
        return text, _SET, "bad_credentials"
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return (
            "the disk that jobs write to is full",
            "Free space, or use another disk: LocalRunner(root=...)",
            "disk_full",
        )
    if isinstance(error, OSError) and not isinstance(error, BotoCoreError):
        return text, "Check the file and its permissions", "unreadable_file"
    return text, "Check the network, the region and AWS_ENDPOINT_URL_S3", "unreachable"
