# SPDX-License-Identifier: Apache-2.0
"""Secret of a job, by which its ranks recognize each other: its files, and its derivation.

    local job        <base>/input/config/FILE          the job's own secret, new for each job
    estimators, `TrainingJob`
                     <code>.tar.gz.secret              an uploaded secret, next to the code
    ModelTrainer     sm_drivers/distributed_drivers/FILE
                                                       an uploaded secret, in an input channel

Several jobs can share an uploaded secret, as they share uploaded code. The secret of each job is
therefore derived from the uploaded one and the job's ARN.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import Final

FILE: Final = "sagemaker_dist_secret"
SUFFIX: Final = ".secret"  # the object in S3 is named after the tarball with the code
MAX_BYTES: Final = 4096  # limit of an object with a secret
_BYTES: Final = 32


def new_secret() -> bytes:
    """Return 32 random bytes as 64 hexadecimal digits."""
    return secrets.token_hex(_BYTES).encode()


def secret_of_job(uploaded: bytes, job_arn: str) -> bytes:
    """Return the secret of the job with this ARN, derived from a secret that jobs share.

    The result is HMAC-SHA256(uploaded, job_arn) as 64 hexadecimal digits.
    """
    return hmac.digest(uploaded, job_arn.encode(), "sha256").hex().encode()


def secret_of_attempt(secret: bytes, attempt: int) -> bytes:
    """Return the secret of the ranks in one attempt of a job, derived from the job's secret.

    The first attempt, number 0, uses the job's secret itself. Each restart has a secret of its own,
    so that a process that is left from an earlier attempt cannot join it.
    """
    if attempt == 0:
        return secret
    return hmac.digest(secret, f"smdist attempt {attempt}".encode(), "sha256").hex().encode()


def write_private(path: Path, secret: bytes) -> None:
    """Write the secret to a new file that only this user can read.

    Raises:
        FileExistsError: The file exists.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
