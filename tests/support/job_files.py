# SPDX-License-Identifier: Apache-2.0
"""Faults of a job file."""

import pytest

from sagemaker_dist.errors import OptionError
from sagemaker_dist.jobs.job_file import read_job_file


def errors_of(path, *settings):
    """Return all errors of a job file with these settings of the command line."""
    with pytest.raises(OptionError) as raised:
        read_job_file(path, settings).job()
    return list(getattr(raised.value, "faults", [raised.value]))


def faults_of(path, *settings):
    """Return the texts of all errors of a job file."""
    return [str(each) for each in errors_of(path, *settings)]


def abouts_of(path, *settings):
    """Return the path of the wrong key of each error of a job file."""
    return [each.about for each in errors_of(path, *settings)]
