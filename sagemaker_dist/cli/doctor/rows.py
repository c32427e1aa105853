# SPDX-License-Identifier: Apache-2.0
"""A row of the doctor's table; what cannot be found out is "unknown", never a crash."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from sagemaker_dist.errors import DistError

Status = Literal["ok", "warn", "fail", "unknown"]

_DENIED: Final = re.compile(r"AccessDenied|UnauthorizedOperation|NotAuthorized|Forbidden|^403$")
_STALE: Final = re.compile(r"Expired|InvalidClientTokenId|AuthFailure|UnrecognizedClient|Signature")
_RENEW: Final = "Renew the credentials (aws sso login, aws configure)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that a job needs.

    Attributes:
        says: What was found.
        mend: What to do; empty where all is well.
    """

    name: str
    status: Status
    says: str
    mend: str = ""


def ok(name: str, says: str) -> Row:
    """All is well."""
    return Row(name=name, status="ok", says=says)


def warn(name: str, says: str, mend: str) -> Row:
    """It works, or not every job needs it."""
    return Row(name=name, status="warn", says=says, mend=mend)


def fail(name: str, says: str, mend: str) -> Row:
    """The job will not run."""
    return Row(name=name, status="fail", says=says, mend=mend)


def unknown(name: str, says: str, mend: str = "") -> Row:
    """Nobody said."""
    return Row(name=name, status="unknown", says=says, mend=mend)


def asked(name: str, action: str, ask: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """The rows of a question to AWS, or the one row that says why there is no answer.

    `action` is what a policy calls the question, for errors that do not say it.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield from list(ask())
    except ClientError as error:
        yield _refused(name, action, error)
    except BotoCoreError as error:
        yield unknown(name, str(error).rstrip("."), "Check network and region")
    except DistError as error:
        cause = error.__cause__
        if isinstance(cause, ClientError):
            yield _refused(name, action, cause)
        elif isinstance(cause, BotoCoreError):
            yield unknown(name, str(cause).rstrip("."), "Check network and region")
        else:
            yield fail(name, f"{error.what}: {error.why}", error.mend)


def code_of(error: Any) -> str:
    """What AWS calls an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _refused(name: str, action: str, error: Any) -> Row:
    code = code_of(error)
    if _DENIED.search(code):
        prefix = action.partition(":")[0]
        exact = action if prefix == "s3" else f"{prefix}:{error.operation_name}"
        return unknown(name, f"{exact} is not allowed", f"Allow these credentials {exact}")
    message = str(error.response.get("Error", {}).get("Message", "")).rstrip(".")
    if _STALE.search(code):
        return fail(name, f"{code}: {message}", _RENEW)
    return unknown(name, f"{code}: {message}", "Read what AWS says")
