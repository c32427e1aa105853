# SPDX-License-Identifier: Apache-2.0
"""AWS sessions without SageMaker's SDK, and conversion of boto3's errors to DistErrors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sagemaker_dist.catalog import check_region
from sagemaker_dist.errors import OptionError, SetupError

_REGION: Final = "AWS_REGION"
_ALLOW: Final = "Allow these credentials {action} (an IAM policy), or use others"
_EXPIRED: Final = ("Expired", "InvalidClientTokenId", "InvalidAccessKeyId", "Signature", "Unrecog")
_BUSY: Final = ("Throttl", "SlowDown", "TooManyRequests", "ServiceUnavailable", "InternalError")
_PREFIXES: Final = {"Amazon ECR": "ecr", "Amazon S3": "s3", "AWS STS": "sts", "AWS IAM": "iam"}


def boto_session(region: str | None = None, profile: str | None = None) -> Any:
    """Return a boto3.Session for a region and a profile; for None, AWS's own settings are used.

    Raises:
        SetupError: The profile does not exist, or AWS's own files cannot be read.
        OptionError: The region is unknown.
    """
    check_region(region)
    import boto3
    from botocore.exceptions import ConfigParseError, ProfileNotFound

    try:
        made = boto3.Session(region_name=region, profile_name=profile)
        if made.region_name is None and os.environ.get(
            _REGION
        ):  # the variable of AWS's other tools
            made = boto3.Session(region_name=os.environ[_REGION], profile_name=profile)
        return made
    except (ProfileNotFound, ConfigParseError) as error:
        hint = "Run aws configure --profile, or name another profile"
        kind = "unknown_profile" if isinstance(error, ProfileNotFound) else "aws_config"
        raise SetupError("AWS's settings cannot be read", str(error), hint, kind=kind) from error


def account_of(session: Any) -> str:
    """Return the number of the AWS account that the session's credentials belong to.

    Raises:
        SetupError: STS refuses the call, or does not answer.
    """
    with aws_refusals(session, "AWS STS"):
        return str(session.client("sts").get_caller_identity()["Account"])


def role_arn(session: Any, role: str) -> str:
    """Return the ARN of an IAM role; `role` is the role's name or ARN.

    A text with a slash counts as an ARN, and is returned unchanged.

    Raises:
        SetupError: The role does not exist, or IAM does not answer.
    """
    if "/" in role or role.startswith("arn:"):
        return role
    with aws_refusals(session, "AWS IAM"):
        iam = session.client("iam")
        try:
            return str(iam.get_role(RoleName=role)["Role"]["Arn"])
        except iam.exceptions.NoSuchEntityException:
            raise SetupError(
                f"the IAM role {role!r} does not exist",
                "a job needs an existing role to get permissions",
                "Correct the name, or pass the role's ARN",
                about="role",
                kind="not_found",
            ) from None


@contextmanager
def aws_refusals(session: Any, service: str) -> Iterator[None]:
    """Convert boto3's errors in the `with` block to SetupError or OptionError with a hint.

    `session` is the boto3.Session of the calls; errors name its region. `service` is the name of
    the service that is called, such as "Amazon ECR".
    """
    from botocore import exceptions

    what = f"{service} in {where(session)} did not answer the call"
    try:
        yield
    except exceptions.NoRegionError as error:
        raise SetupError(
            "no AWS region is set",
            str(error).rstrip("."),
            "Set AWS_DEFAULT_REGION, or a session's region",
            kind="no_region",
        ) from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        why = str(error).rstrip(".")
        hint = "Run aws configure, or set AWS_PROFILE"
        raise SetupError(what, why, hint, kind="no_credentials") from error
    except exceptions.ParamValidationError as error:
        wrong = f"a request to {service} is not valid"
        hint = "Correct the option that boto3's message names"
        raise OptionError(wrong, str(error), hint, kind="invalid_request") from error
    except exceptions.ClientError as error:
        raise _refused(what, service, error) from error
    except exceptions.BotoCoreError as error:
        raise SetupError(
            what, str(error).rstrip("."), "Check the network and the region"
        ) from error


def _refused(what: str, service: str, error: Any) -> SetupError:
    code = error.response["Error"]["Code"]
    why = f"{code}: {error.response['Error'].get('Message', '')}".rstrip(". :")
    if code.startswith("AccessDenied"):
        hint = _ALLOW.format(action=_action(service, error))
        return SetupError(what, why, hint, kind="access_denied")
    kind, hint = _kind_and_hint(code)
    return SetupError(what, why, hint, kind=kind)


def _kind_and_hint(code: str) -> tuple[str, str]:
    if any(part in code for part in _EXPIRED):
        return "bad_credentials", "Renew the credentials (aws sso login, aws configure)"
    if any(part in code for part in _BUSY):
        return "throttled", "Try again in a minute"
    hint = "Correct the setting that the message names, or ask the account's administrator"
    return "refused", hint


def _action(service: str, error: Any) -> str:
    return f"{_PREFIXES[service]}:{error.operation_name}"


def where(session: Any) -> str:
    """Return the region of a boto3 session as text for errors, such as "region eu-west-1"."""
    return f"region {session.region_name}"
