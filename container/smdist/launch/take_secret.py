# SPDX-License-Identifier: Apache-2.0
"""The launcher's part in the job's secret: finds it, and hands it to this host's ranks.

Places, in this order; the first one that has a secret is used:

    SMDIST_SECRET_FILE, SMDIST_SECRET              set by the user
    <base>/input/config/sagemaker_dist_secret      written by the local runner, removed here
    <base>/input/data/sm_drivers/distributed_drivers/sagemaker_dist_secret
                                                   sent by ModelTrainer; it stays, because the
                                                   hosts of its local mode share this folder
    <code>.tar.gz.secret                           uploaded by the estimators and `TrainingJob`

The secrets that were sent or uploaded may serve several jobs: each job derives its own.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sagemaker_dist.contract.job_secret import (
    FILE,
    MAX_BYTES,
    SUFFIX,
    secret_of_attempt,
    secret_of_job,
    write_private,
)
from sagemaker_dist.contract.redaction import without_login
from sagemaker_dist.errors import LaunchError
from smdist.code_source import Source
from smdist.config import RuntimeConfig
from smdist.dataparallel.rendezvous.secret import read_secret

_NOT_THERE: Final = frozenset({"403", "404", "AccessDenied", "NoSuchKey"})
_HINT: Final = (
    "To protect it, submit the job with this version of sagemaker-dist, and allow the role to read"
    " the object next to the code whose name ends in .secret"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSecret:
    """Secret of the job, or the reason why the job has none.

    Attributes:
        value: The secret; None if the job has none.
        missing: Reason why it has none; "" if it has one.
        is_users: True if it is that of the environment in place of the job's own.
    """

    value: bytes | None = None
    missing: str = ""
    is_users: bool = False

    @property
    def warning(self) -> str:
        """Return the line for the log about a secret that is not the job's own, or ""."""
        if self.is_users:
            return "ranks use the secret of the environment, not the job's own"
        if self.value is not None:
            return ""
        return (
            "the start of this job is not protected: a process that reaches the port of the first"
            f" host can join it. The reason: {self.missing}. {_HINT}"
        )


def take_secret(config: RuntimeConfig) -> JobSecret:
    """Find the job's secret, and remove its file if the file is this job's own.

    Raises:
        LaunchError: A file or object with a secret cannot be read, or the user's environment has
            two different secrets.
    """
    own = _taken(config.base / "input" / "config" / FILE)
    path = None if config.secret_file is None else Path(config.secret_file)
    if users := read_secret(path, config.secret):
        has_own = bool(own) or config.source.submit_directory.startswith("s3://")
        return JobSecret(value=users, is_users=has_own)
    if own:
        return JobSecret(value=own)
    drivers = config.base / "input" / "data" / "sm_drivers" / "distributed_drivers"
    sent, missing = drivers / FILE, ""
    uploaded = read_secret(sent) if sent.is_file() else None
    if not uploaded and config.options is not None:
        uploaded, missing = _beside_code(config.source)
    if not uploaded:
        return JobSecret(missing=missing or "nothing was uploaded with the code")
    return JobSecret(value=secret_of_job(uploaded, config.job_arn))


def hand_over(config: RuntimeConfig, secret: JobSecret, directory: Path) -> RuntimeConfig:
    """Write the secret to a file in `directory`, and return `config` with the path of this file.

    Ranks read the file, and no other user can. The environment of the ranks is without the secret.
    """
    inherited = {k: v for k, v in config.inherited.items() if k != "SMDIST_SECRET"}
    config = replace(config, secret=None, inherited=inherited)
    if secret.value is None:
        return config
    path = directory / "secret"
    write_private(path, secret.value)
    return replace(config, secret_file=str(path))


def hand_over_attempt(config: RuntimeConfig, attempt: int, directory: Path) -> RuntimeConfig:
    """Write the secret of an attempt to a file in `directory`; return `config` with its path.

    The first attempt, number 0, keeps the file of the job's secret.
    """
    if attempt == 0 or config.secret_file is None:
        return config
    secret = read_secret(Path(config.secret_file))
    assert secret
    path = directory / "secret"
    write_private(path, secret_of_attempt(secret, attempt))
    return replace(config, secret_file=str(path))


def _taken(path: Path) -> bytes | None:
    """Return the content of a file with a secret, and remove the file; None if there is none."""
    if not path.is_file():
        return None
    content = read_secret(path)
    with contextlib.suppress(OSError):  # the folder may be read-only
        path.unlink()
    return content


def _beside_code(source: Source) -> tuple[bytes | None, str]:
    """Return the secret uploaded next to the code, and if there is none, the reason."""
    place = source.submit_directory
    if place.startswith("s3://"):
        return _downloaded(source, f"{place}{SUFFIX}")
    path = Path(f"{place}{SUFFIX}")
    is_there = place.endswith(".tar.gz") and path.is_file()  # in a channel, next to the code
    return (read_secret(path), "") if is_there else (None, "")


def _downloaded(source: Source, uri: str) -> tuple[bytes | None, str]:
    import boto3  # the code was downloaded with it
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = uri.removeprefix("s3://").partition("/")
    try:
        client = boto3.client("s3", region_name=source.region, endpoint_url=source.endpoint)
        content: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read(MAX_BYTES).strip()
    except ClientError as error:
        why = without_login(str(error))
        if error.response.get("Error", {}).get("Code") in _NOT_THERE:
            return None, f"{uri} cannot be read ({why.rstrip('.')})"
        raise _unread(uri, why) from error
    except (BotoCoreError, OSError) as error:
        raise _unread(uri, without_login(str(error))) from error
    return content or None, f"{uri} is empty"


def _unread(uri: str, why: str) -> LaunchError:
    return LaunchError(
        f"the secret of the job at {uri} cannot be downloaded",
        why,
        "Start the job again; if the error stays, check the network of the job and the rights of"
        " its role",
        about="sagemaker_submit_directory",
        kind="not_downloaded",
    )
