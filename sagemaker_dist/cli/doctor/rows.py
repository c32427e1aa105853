# SPDX-License-Identifier: Apache-2.0
"""Rows of the table that `sagemaker-dist doctor` prints, each with the result of one check.

A check that AWS refuses has the status "unknown"; it does not stop the other checks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from sagemaker_dist.errors import DistError, dotted

Status = Literal["ok", "warn", "fail", "unknown"]

_DENIED: Final = re.compile(r"AccessDenied|UnauthorizedOperation|NotAuthorized|Forbidden|^403$")
_STALE: Final = re.compile(r"Expired|InvalidClientTokenId|AuthFailure|UnrecognizedClient|Signature")
_RENEW: Final = "Renew the credentials (aws sso login, aws configure)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result of one check.

    Attributes:
        name: Short name of the check, such as "role".
        status: "ok", "warn", "fail", or "unknown" for a check that could not be made.
        text: Result of the check, in words.
        hint: Advice for the user; empty if no action is needed.
        kind: Kind of the error that was found, such as "setup"; empty if there was none.
        about: Option that the error is about, such as "inputs.train.uri"; empty if there is none.
    """

    name: str
    status: Status
    text: str
    hint: str = ""
    kind: str = ""
    about: str = ""


def ok(name: str, text: str) -> Row:
    """Return the result of a check that passed; `text` says what was found."""
    return Row(name=name, status="ok", text=text)


def warn(name: str, text: str, hint: str) -> Row:
    """Return the result of a check that found a fault which affects only some jobs.

    `text` says what was found, `hint` what the user should do.
    """
    return Row(name=name, status="warn", text=text, hint=hint)


def fail(name: str, text: str, hint: str) -> Row:
    """Return the result of a check that found a fault with which the job cannot run.

    `text` says what was found, `hint` what the user should do.
    """
    return Row(name=name, status="fail", text=text, hint=hint)


def failed(name: str, error: DistError, *, status: Status = "fail") -> Row:
    """Return the result of a check that raised an error: the error's text, hint, kind and option.

    `status` is "warn" for an error that affects only some jobs.
    """
    text, about = f"{error.what}: {error.why}", dotted(error.about)
    return Row(name=name, status=status, text=text, hint=error.hint, kind=error.kind, about=about)


def unknown(name: str, text: str, hint: str = "") -> Row:
    """Return the result of a check that could not be made; `text` says why."""
    return Row(name=name, status="unknown", text=text, hint=hint)


def aws_rows(name: str, action: str, call: Callable[[], Iterable[Row]]) -> Iterator[Row]:
    """Yield the rows that `call` returns, or one row with the reason why its AWS calls failed.

    Args:
        name: Short name of the check, for the row about a failure.
        action: IAM action that the calls need; the row names it if AWS denies access.
        call: Function that calls AWS and returns rows.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield from list(call())
    except ClientError as error:
        yield _refused(name, action, error)
    except BotoCoreError as error:
        yield unknown(name, str(error).rstrip("."), "Check the network and the region")
    except DistError as error:
        cause = error.__cause__
        if isinstance(cause, ClientError):
            yield _refused(name, action, cause)
        elif isinstance(cause, BotoCoreError):
            yield unknown(name, str(cause).rstrip("."), "Check the network and the region")
        else:
            yield failed(name, error)


def code_of(error: Any) -> str:
    """Return the error code in a ClientError of botocore, such as "AccessDenied"."""
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
    return unknown(name, f"{code}: {message}", "Read the message of AWS")
