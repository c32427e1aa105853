# SPDX-License-Identifier: Apache-2.0
"""Patterns for the name of a job and the S3 URI of its code, for IAM policies.

Without the option `job_name`, a job's name ends with the time of its start. So one policy with a
pattern serves all jobs of a job file.
"""

from __future__ import annotations

import re
from typing import Final

from sagemaker_dist.jobs import TrainingJob
from sagemaker_dist.planning.locations import S3

_TIME: Final = re.compile(r"-\d{4}(?:-\d\d){5}-\d{3}$")


def names_of(job: TrainingJob) -> list[str]:
    """Return the job's name, or a pattern for its generated names, for the ARNs of an IAM policy.

    If the name has capitals, the second result is the name in lower case, which SageMaker uses in
    some ARNs.
    """
    name = _name(job)
    return list(dict.fromkeys([name, name.lower()]))


def code_of(job: TrainingJob) -> tuple[str, str]:
    """Return the S3 URI of the job's code, and a pattern that matches such URIs.

    The pattern matches the URIs of all jobs of the same job file. If the user uploaded the code,
    the pattern is the URI itself. Both texts are empty for a job without code in S3.
    """
    code = job._code_uri() or ""
    if not job._uploads:
        return (code, code) if code.startswith(S3) else ("", "")
    base, separator, _ = code.rpartition(f"/{job.name}/source/")
    assert separator, "code is uploaded below the job's name"
    return code, f"{base}/{_name(job)}/source/*"


def _name(job: TrainingJob) -> str:
    return job.name if job.job_name is not None else _TIME.sub("-*", job.name)
