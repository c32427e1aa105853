# SPDX-License-Identifier: Apache-2.0
"""The secret that is uploaded once next to the code, from which each job derives its own.

The object is only created, never replaced: jobs that use the same code may have read it already. A
request contains neither the secret nor its name, so it stays the same when the secret is new.
"""

from __future__ import annotations

from typing import Any, Final

from sagemaker_dist.contract.job_secret import SUFFIX, new_secret
from sagemaker_dist.packaging.aws_session import aws_refusals

_IS_THERE: Final = "PreconditionFailed"
_IS_WRITTEN: Final = "ConditionalRequestConflict"  # another process writes the object right now
_TRIES: Final = 3


def upload_secret(
    session: Any,
    code: str,
    *,
    kms_key: str | None = None,
    encrypts: bool = False,
    owner: str | None = None,
) -> None:
    """Create the object with the secret next to the code in S3; keep the one that exists.

    Args:
        session: boto3.Session.
        code: S3 URI of the tarball with the code.
        kms_key: KMS key that encrypts the object, or None.
        encrypts: Encrypt the object with the account's own key for S3 if `kms_key` is None.
        owner: Number of the account that must own the bucket, or None.

    Raises:
        SetupError: S3 refuses the upload, or does not answer.
    """
    bucket, _, key = code.removeprefix("s3://").partition("/")
    extra = {"ServerSideEncryption": "aws:kms"} if kms_key or encrypts else {}
    extra |= {"SSEKMSKeyId": kms_key} if kms_key else {}
    extra |= {"ExpectedBucketOwner": owner} if owner else {}
    place = {"Bucket": bucket, "Key": f"{key}{SUFFIX}", "IfNoneMatch": "*", **extra}
    with aws_refusals(session, "Amazon S3"):
        s3 = session.client("s3")
        for tries_left in reversed(range(_TRIES)):
            try:
                s3.put_object(Body=new_secret(), **place)
                return
            except s3.exceptions.ClientError as error:
                code_of_error = error.response["Error"]["Code"]
                if code_of_error == _IS_THERE:
                    return
                if code_of_error != _IS_WRITTEN or not tries_left:
                    raise
