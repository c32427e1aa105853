# SPDX-License-Identifier: Apache-2.0
"""Secret of the job, if a file provides it to every rank."""

from __future__ import annotations

from pathlib import Path

from sagemaker_dist.errors import LaunchError


def read_secret(path: Path) -> bytes:
    """Return the content of the file without surrounding white space.

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
            "Put the same random text into this file on every host,"
            " or unset SMDIST_SECRET_FILE to let rank 0 make a secret",
        )
    return secret
