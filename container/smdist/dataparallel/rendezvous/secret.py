# SPDX-License-Identifier: Apache-2.0
"""Secret of a job, read from a file. A rank that has the secret belongs to the job."""

from __future__ import annotations

from pathlib import Path

from sagemaker_dist.errors import LaunchError


def read_secret(path: Path) -> bytes:
    """Return the secret: the content of the file without white space around it.

    Raises:
        LaunchError: The file cannot be read, or is empty.
    """
    try:
        secret, why = path.read_bytes().strip(), "it is empty"
    except OSError as error:
        secret, why = b"", error.strerror or str(error)
    if not secret:
        raise LaunchError(
            f"the secret of the job cannot be read from {str(path)!r}",
            why,
            "Write the same random text to this file on every host,"
            " or unset SMDIST_SECRET_FILE, so that rank 0 generates a secret",
            about="SMDIST_SECRET_FILE",
        )
    return secret
