# SPDX-License-Identifier: Apache-2.0
"""Digest of the code of an estimator, which keeps different code of one job name apart in S3."""

from __future__ import annotations

from typing import Any

from sagemaker.workflow import is_pipeline_variable

from sagemaker_dist.packaging import digest_of, source_tarball


def code_digest(estimator: Any) -> str:
    """Return a digest, as 32 hexadecimal digits, of the files that the SDK uploads as the code.

    The result is "" for code that is in S3 already, of which the SDK uploads nothing.

    Raises:
        SetupError: A file cannot be read.
    """
    folder = estimator.source_dir
    if is_pipeline_variable(folder) or str(folder).lower().startswith("s3://"):
        return ""
    code = estimator.entry_point, folder, estimator.dependencies
    with source_tarball(*code) as tarball:
        return digest_of(tarball)
