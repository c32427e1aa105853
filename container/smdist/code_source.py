# SPDX-License-Identifier: Apache-2.0
"""Location of the user's script, from hyperparameters, the environment and ModelTrainer's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from smdist.container_files import Drivers


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Location of the user's script, and of the requirements file that pip installs.

    Attributes:
        program: Path of the script, relative to the code directory.
        submit_directory: Origin of the code: a directory, a tarball or an S3 URI; empty if the
            image contains the code.
        region: AWS region of the S3 client that downloads the code; None for boto3's default.
        endpoint: URL of an S3 endpoint other than AWS's, or None for AWS's.
        directory: Directory of the input channel that has the code, which runs there; None if the
            code runs in `<base>/code`.
        requirements: Path of the requirements file, relative to the code; "" for none.
        needs_requirements: True if a missing requirements file is an error.
        installer: The SDK's script that installs requirements from AWS CodeArtifact, or None
            to install them with pip.
    """

    program: str
    submit_directory: str = ""
    region: str | None = None
    endpoint: str | None = None
    directory: Path | None = None
    requirements: str = "requirements.txt"
    needs_requirements: bool = False
    installer: Path | None = None


def code_source(
    decoded: Mapping[str, Any], environ: Mapping[str, str], drivers: Drivers | None
) -> Source:
    """Return where the script is.

    Args:
        decoded: Hyperparameters of the job, without the SDK's JSON encoding.
        environ: Environment variables, by name.
        drivers: Content of ModelTrainer's files; None without them.
    """
    region = decoded.get("sagemaker_region")
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("S3_ENDPOINT_URL")
    source = Source(
        program=str(decoded.get("sagemaker_program") or ""),
        submit_directory=str(decoded.get("sagemaker_submit_directory") or ""),
        region=region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"),
        endpoint=endpoint or None,
    )
    return source if drivers is None else _channel_source(source, environ, drivers)


def _channel_source(source: Source, environ: Mapping[str, str], drivers: Drivers) -> Source:
    """Return `source` with the code's location and requirements from ModelTrainer's files.

    `drivers` has the content of these files. If SMDIST_PREPARED is set in `environ`, ModelTrainer's
    shell script has unpacked the code and installed the requirements already; the result then
    contains neither a tarball nor requirements.
    """
    is_prepared = bool(environ.get("SMDIST_PREPARED"))
    if drivers.code is not None:
        tarball = "" if is_prepared else str(drivers.tarball or "")
        source = replace(source, submit_directory=tarball, directory=drivers.code)
    return replace(
        source,
        program=drivers.program,
        requirements="" if is_prepared else drivers.requirements,
        needs_requirements=drivers.needs_requirements,
        installer=drivers.installer if environ.get("CA_REPOSITORY_ARN") else None,
    )
