# SPDX-License-Identifier: Apache-2.0
"""Everything that is decided before a job starts. Pure: no network, no disk."""

from sagemaker_dist.planning.channels import Channel, channel_faults
from sagemaker_dist.planning.faults import construction_faults, construction_warnings, fit_faults
from sagemaker_dist.planning.job import Job, Obstacle, Source
from sagemaker_dist.planning.local_channel import LocalChannel
from sagemaker_dist.planning.local_job import (
    LocalHost,
    LocalJob,
    LocalSource,
    plan_local_job,
)
from sagemaker_dist.planning.locations import directory_of
from sagemaker_dist.planning.service import Limit, Terms
from sagemaker_dist.planning.travel import travel_warning

__all__ = [
    "Channel",
    "Job",
    "Limit",
    "LocalChannel",
    "LocalHost",
    "LocalJob",
    "LocalSource",
    "Obstacle",
    "Source",
    "Terms",
    "channel_faults",
    "construction_faults",
    "construction_warnings",
    "directory_of",
    "fit_faults",
    "plan_local_job",
    "travel_warning",
]
