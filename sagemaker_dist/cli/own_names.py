# SPDX-License-Identifier: Apache-2.0
"""What every job of a job file is called, and where its code lies, as policies write it.

A name without `job_name` ends with the time, which the next job does not share.
"""

from __future__ import annotations

import re
from typing import Final

from sagemaker_dist.jobs import TrainingJob
from sagemaker_dist.planning.locations import S3

_TIME: Final = re.compile(r"-\d{4}(?:-\d\d){5}-\d{3}$")


def names_of(job: TrainingJob) -> list[str]:
    """As ARNs have them: as they are, and in lower case, in which SageMaker writes some."""
    name = _name(job)
    return list(dict.fromkeys([name, name.lower()]))


def code_of(job: TrainingJob) -> tuple[str, str]:
    """The place of the job's code in S3, and what covers that of every job of its file.

    Both are empty where there is none. What the user uploaded is covered by itself.
    """
    code = job._settled.code or ""
    if not job._uploads:
        return (code, code) if code.startswith(S3) else ("", "")
    base, mark, _ = code.rpartition(f"/{job.name}/source/")
    assert mark, "code is uploaded below the job's name"
    return code, f"{base}/{_name(job)}/source/*"


def _name(job: TrainingJob) -> str:
    return job.name if job.job_name is not None else _TIME.sub("-*", job.name)
