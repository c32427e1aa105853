# SPDX-License-Identifier: Apache-2.0
"""Faults of a job file."""

import pytest

from sagemaker_dist.errors import OptionError
from sagemaker_dist.jobs.job_file import read_job_file


def faults_of(path, *settings):
    with pytest.raises(OptionError) as raised:
        read_job_file(path, settings).job()
    return [str(each) for each in getattr(raised.value, "faults", [raised.value])]
