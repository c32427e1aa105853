# SPDX-License-Identifier: Apache-2.0
"""Conversion of boto3's errors to DistErrors with a hint.

The error codes are those of SageMaker's and CloudWatch's API references and of their common
errors (docs.aws.amazon.com/sagemaker/latest/APIReference, CommonErrors.html and
API_CreateTrainingJob.html; docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference,
CommonErrors.html; 2026-11-21).

For a job that does not exist, DescribeTrainingJob returns a ValidationException "Requested resource
not found.". AWS documents ResourceNotFound instead. Both are handled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sagemaker_dist.errors import DistError, JobError, OptionError, SetupError

_RENEW: Final = "Renew the credentials (aws sso login, aws configure)"
_EXPIRED: Final = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "UnrecognizedClientException",
}
_CLOCK: Final = {"RequestExpired", "RequestTimeTooSkewed"}
_THROTTLED: Final = {
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
}
_DENIED: Final = re.compile(r"not authorized to perform: (\S+)(?: on resource: (\S+))?")
_INVALID: Final = {"ValidationException", "ResourceNotFound"}
_SERVER_FAULT: Final = 500


class PassingError(SetupError):
    """Error of a call that failed for a temporary reason, so that a later call may succeed.

    AWS throttled the call, or the server or the network had a fault.
    """


class DeniedError(SetupError):
    """Error of a call that the IAM permissions of the credentials do not allow."""

    default_kind = "access_denied"


class NoSuchJobError(JobError):
    """Error about a job that does not exist in this account and region."""


def no_such_job(name: str, region: str, message: str) -> NoSuchJobError:
    """Return the error for a job that does not exist; `message` is SageMaker's text."""
    return NoSuchJobError(
        f"there is no job {name!r}",
        f"SageMaker has no job of this name in region {region} ({message})",
        "Check the name, the region and the account",
        kind="not_found",
    )


def name_is_taken(name: str, region: str) -> OptionError:
    """Return the error for a job name that another job of this account and region has."""
    return OptionError(
        f"job_name is {name!r}",
        f"a job of this name exists in this account in region {region}",
        "Pass another name, or leave job_name out",
        about="job_name",
        kind="conflict",
    )


@contextmanager
def translated(what: str, name: str, region: str) -> Iterator[None]:
    """Convert boto3's errors in the `with` block to DistErrors with a hint.

    Args:
        what: Beginning of each error's text, which names the operation that failed.
        name: Name of the job.
        region: AWS region of the job, for the texts of errors.
    """
    from botocore import exceptions as boto

    try:
        yield
    except boto.ClientError as error:
        raise _refusal(what, name, region, error) from error
    except boto.ParamValidationError as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise OptionError(
            f"the request of job {name!r} is not valid",
            why,
            "Correct the options that boto3's message names",
            kind="invalid_request",
        ) from error
    except boto.NoRegionError as error:
        hint = "Set AWS_DEFAULT_REGION, or pass a session with a region"
        raise SetupError("no AWS region is set", _text(error), hint, kind="no_region") from error
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        hint = "Run aws configure, or set AWS_PROFILE"
        raise SetupError(what, _text(error), hint, kind="no_credentials") from error
    except (boto.CredentialRetrievalError, boto.SSOError, boto.TokenRetrievalError) as error:
        raise SetupError(what, _text(error), _RENEW, kind="bad_credentials") from error
    except (boto.ConnectionError, boto.HTTPClientError) as error:
        hint = "Check the network, the proxy and the region"
        raise PassingError(what, _text(error), hint, kind="unreachable") from error
    except boto.BotoCoreError as error:
        hint = "Check boto3's settings (~/.aws/config)"
        raise SetupError(what, _text(error), hint, kind="aws_config") from error


def code_of(error: Any) -> str:
    """Return the error code in a ClientError of botocore, such as "ResourceInUse"."""
    return str(error.response["Error"].get("Code", ""))


def _text(error: Exception) -> str:
    return str(error).rstrip(". ")


def _refusal(what: str, name: str, region: str, error: Any) -> DistError:
    code = code_of(error)
    message = str(error.response["Error"].get("Message", "")).strip().rstrip(".")
    why = f"{code}: {message}" if message else code
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _THROTTLED or status >= _SERVER_FAULT:
        kind = "throttled" if code in _THROTTLED else "server_fault"
        return PassingError(what, why, "Try again in a minute", kind=kind)
    if code == "ResourceInUse":
        return name_is_taken(name, region)
    if code == "ResourceLimitExceeded":
        hint = "Request more in AWS's Service Quotas (Amazon SageMaker), or use another instance"
        return JobError(what, why, f"{hint} type or region", kind="quota")
    if _is_missing(code, error.operation_name):
        return no_such_job(name, region, message)
    if code in _INVALID:
        hint = "Correct the options that SageMaker names"
        what = f"SageMaker refuses a request for job {name!r}"
        return OptionError(what, why, hint, kind="refused")
    return _no_access(what, why, code, error)


def _is_missing(code: str, operation: str) -> bool:
    # DescribeTrainingJob has only the name to refuse; CreateTrainingJob has many options
    return operation == "DescribeTrainingJob" and code in _INVALID


def _no_access(what: str, why: str, code: str, error: Any) -> SetupError:
    if code.startswith(("AccessDenied", "NotAuthorized", "UnauthorizedOperation")):
        return DeniedError(what, why, _allow(error, why))
    if code in _EXPIRED:
        return SetupError(what, why, _RENEW, kind="bad_credentials")
    if code in _CLOCK or "signature" in code.lower():
        # "Signature expired" or "not yet current": the clock is wrong; else the secret key is
        if "current" in why or "expired" in why:
            return SetupError(what, why, "Correct this machine's clock", kind="wrong_clock")
        return SetupError(what, why, _RENEW, kind="bad_credentials")
    return SetupError(what, why, "Correct the setting that AWS's message names", kind="refused")


def _allow(error: Any, why: str) -> str:
    match = _DENIED.search(why)
    action = match[1] if match else f"{_service(error)}:{error.operation_name}"
    on = f" on {match[2]}" if match and match[2] else ""
    return f"Allow these credentials {action}{on} (an IAM policy), or use others"


def _service(error: Any) -> str:
    return "logs" if error.operation_name == "FilterLogEvents" else "sagemaker"
