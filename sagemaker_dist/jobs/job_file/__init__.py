# SPDX-License-Identifier: Apache-2.0
"""A training job as a TOML file.

read.py      file and command line -> TrainingJob, or all faults at once
schema.py    what it may hold, as JSON Schema, from the options' own types
shape.py     values against that schema
lines.py     the line of every key
settings.py  --set KEY=VALUE
places.py    faults and relative paths get their place
"""

from sagemaker_dist.jobs.job_file.read import JobFile, read_job_file
from sagemaker_dist.jobs.job_file.schema import job_schema

__all__ = ["JobFile", "job_schema", "read_job_file"]
