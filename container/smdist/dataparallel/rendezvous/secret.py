# SPDX-License-Identifier: Apache-2.0
"""Secret of a job, from a file or from the environment. A rank that has it belongs to the job.

SMDIST_SECRET_FILE   path of a file with the secret
SMDIST_SECRET        the secret itself
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sagemaker_dist.errors import LaunchError


def read_secret(path: Path | None, value: str | None = None) -> bytes | None:
    """Return the job's secret without white space around it; None if there is none.

    Args:
        path: Path of the file in SMDIST_SECRET_FILE, or None.
        value: Value of SMDIST_SECRET, or None.

    Raises:
        LaunchError: The file cannot be read, is empty or no regular file, or contains another
            secret than `value`.
    """
    given = value.strip().encode() if value else b""
    if path is None:
        return given or None
    secret = _content(path)
    if given and given != secret:
        raise LaunchError(
            f"SMDIST_SECRET and the file {str(path)!r} of SMDIST_SECRET_FILE are both given",
            "they contain different secrets, and a job has one",
            "Unset SMDIST_SECRET, or unset SMDIST_SECRET_FILE",
            about="SMDIST_SECRET",
            kind="conflict",
        )
    return secret


def _content(path: Path) -> bytes:
    try:
        secret, why = _read_regular(path).strip(), "it is empty"
    except OSError as error:
        secret, why = b"", error.strerror or str(error)
    if not secret:
        raise LaunchError(
            f"the secret of the job cannot be read from {str(path)!r}",
            why,
            "Write the same random text to this file on every host, or unset SMDIST_SECRET_FILE: a"
            " job of sagemaker-dist then has its own secret, and the start of plain torchrun is not"
            " protected",
            about="SMDIST_SECRET_FILE",
        )
    return secret


def _read_regular(path: Path) -> bytes:
    """Return the content of a regular file; each rank would wait for a writer of a FIFO.

    Raises:
        OSError: The file cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is no regular file, and every rank of the host has to read it")
        return file.read()
