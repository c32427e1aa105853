# SPDX-License-Identifier: Apache-2.0
"""Translation of boto3's errors, for calls that read facts and prices of instance types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sagemaker_dist.errors import SetupError


@contextmanager
def boto3_errors_translated(service: str, region: str | None, permission: str) -> Iterator[None]:
    """Convert errors of boto3 in the `with` block to a SetupError with a hint.

    Args:
        service: Name of the AWS service, for the message, such as "Amazon EC2".
        region: Region of the calls; None if no region is set.
        permission: IAM action that the calls need, for the hint.

    Raises:
        SetupError: The service did not answer: no region, credentials, permission or network.
    """
    from botocore import exceptions

    what = f"{service} in region {region} did not answer"
    try:
        yield
    except exceptions.NoRegionError as error:
        hint = "Pass --region (a session with a region), or set AWS_DEFAULT_REGION"
        why = str(error).rstrip(".")
        raise SetupError("no AWS region is set", why, hint, kind="no_region") from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        hint = "Run aws configure, or set AWS_PROFILE"
        raise SetupError(what, str(error).rstrip("."), hint, kind="no_credentials") from error
    except exceptions.ClientError as error:
        code = error.response["Error"]["Code"]
        why = f"{code}: {error.response['Error'].get('Message', '')}"
        hint = f"Renew the credentials, or allow them {permission} in an IAM policy"
        is_denied = code.startswith(("AccessDenied", "UnauthorizedOperation"))
        kind = "access_denied" if is_denied else "refused"
        raise SetupError(what, why.rstrip(". :"), hint, kind=kind) from error
    except exceptions.BotoCoreError as error:
        hint = "Check the network and the region"
        raise SetupError(what, str(error).rstrip("."), hint) from error
