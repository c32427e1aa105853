# SPDX-License-Identifier: Apache-2.0
"""Patterns for the name of a job and the place of its code, for IAM policies.

Without `job_name`, a job's name ends with the time, so a policy for the next job too needs a
pattern.
"""

from __future__ import annotations

import re
from typing import Final

from sagemaker_dist.jobs import TrainingJob
from sagemaker_dist.planning.locations import S3

_TIME: Final = re.compile(r"-\d{4}(?:-\d\d){5}-\d{3}$")


def names_of(job: TrainingJob) -> list[str]:
    """Return the name or pattern as ARNs contain it: as it is, and in lower case, which SageMaker
    uses in some.
    """
    name = _name(job)
    return list(dict.fromkeys([name, name.lower()]))


def code_of(job: TrainingJob) -> tuple[str, str]:
    """Return the S3 place of the job's code, and the pattern that covers the code of every job of
    its file.

    Both are empty for a job without code in S3. Code that the user uploaded is its own pattern.
    """
    code = job._resolved.code or ""
    if not job._uploads:
        return (code, code) if code.startswith(S3) else ("", "")
    base, mark, _ = code.rpartition(f"/{job.name}/source/")
    assert mark, "code is uploaded below the job's name"
    return code, f"{base}/{_name(job)}/source/*"


def _name(job: TrainingJob) -> str:
    return job.name if job.job_name is not None else _TIME.sub("-*", job.name)
