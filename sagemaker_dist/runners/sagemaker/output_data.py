# SPDX-License-Identifier: Apache-2.0
"""Output data of a job in S3: the archive that SageMaker makes of /opt/ml/output/data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from sagemaker_dist.runners.protocol import Description
from sagemaker_dist.runners.sagemaker.api_errors import code_of, translated

_MISSING = frozenset({"404", "NoSuchKey", "NoSuchBucket"})


@dataclass(frozen=True, slots=True)
class OutputData:
    """The archive with the output data of a job.

    Attributes:
        uri: Its URI in S3.
        content: Its bytes, which can be read once.
    """

    uri: str
    content: IO[bytes]


@contextmanager
def open_output_data(s3: Any, description: Description, region: str) -> Iterator[OutputData | None]:
    """Open the output data of a job; None if SageMaker has not written any.

    SageMaker writes the archive when the job has ended, also if it has failed.

    Args:
        s3: boto3's client for S3.
        description: The job, as DescribeTrainingJob describes it.
        region: Name of the AWS region, for errors.

    Raises:
        SetupError: S3 refuses these credentials, or does not answer.
    """
    from botocore.exceptions import ClientError

    name = str(description["TrainingJobName"])
    prefix = str(description["OutputDataConfig"]["S3OutputPath"]).rstrip("/")
    uri = f"{prefix}/{name}/output/output.tar.gz"
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    with translated(f"S3 did not return {uri}", name, region):
        try:
            body = s3.get_object(Bucket=bucket, Key=key)["Body"]
        except ClientError as error:
            if code_of(error) not in _MISSING:
                raise
            body = None
    if body is None:
        yield None
        return
    with body:
        yield OutputData(uri, body)
