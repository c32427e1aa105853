# SPDX-License-Identifier: Apache-2.0
"""Upload of an estimator's secret, with the encryption that the SDK uses for the code beside it."""

from __future__ import annotations

from typing import Any

from sagemaker.s3 import parse_s3_url
from sagemaker.workflow import is_pipeline_variable

from sagemaker_dist.packaging import upload_secret


def upload_secret_of(estimator: Any, code: Any) -> None:
    """Create the secret next to the uploaded code of an estimator; keep the one that exists.

    Nothing is uploaded next to code that the user has put into S3.

    Args:
        estimator: Estimator whose code was uploaded.
        code: S3 URI of the code.

    Raises:
        SetupError: S3 refuses the upload, or does not answer.
    """
    folder = estimator.source_dir
    if is_pipeline_variable(folder) or str(folder).lower().startswith("s3://"):
        return
    session = estimator.sagemaker_session
    bucket, _ = parse_s3_url(code)
    settings = session.settings
    of_default = getattr(session, "_get_account_id_if_default_bucket", lambda _: None)
    upload_secret(
        session.boto_session,
        code,
        kms_key=_key(estimator, bucket),
        encrypts=settings is None or settings.encrypt_repacked_artifacts,
        owner=of_default(bucket),
    )


def _key(estimator: Any, bucket: str) -> str | None:
    """Return the KMS key of the output if the code is in the bucket of the output, else None."""
    output, place = estimator.output_path, estimator.code_location
    if is_pipeline_variable(output):
        is_same = place is not None and bucket == estimator.sagemaker_session.default_bucket()
    else:
        is_same = not output.startswith("file://") and bucket == parse_s3_url(output)[0]
    key: str | None = estimator.output_kms_key if is_same else None
    return key
