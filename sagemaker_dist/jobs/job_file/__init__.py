# SPDX-License-Identifier: Apache-2.0
"""Job files: a training job as a TOML file.

job_file_reader.py   file and command line -> TrainingJob, or all faults together
json_schema.py       JSON Schema of job files, made from the types of the options
schema_check.py      check of values against that schema
toml_lines.py        line number of every key
settings.py          the option --set KEY=VALUE
origins.py           file and line of each fault; base directory of relative paths
"""

from sagemaker_dist.jobs.job_file.job_file_reader import JobFile, read_job_file
from sagemaker_dist.jobs.job_file.json_schema import job_schema

__all__ = ["JobFile", "job_schema", "read_job_file"]
