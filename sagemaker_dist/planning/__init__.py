# SPDX-License-Identifier: Apache-2.0
"""Checks and plans of a job before the job starts; this package uses neither network nor disk."""

from sagemaker_dist.planning.budget import (
    Budget,
    CostTerms,
    budget_of,
    without_consequences,
)
from sagemaker_dist.planning.channel_checks import Channel, channel_faults
from sagemaker_dist.planning.gradient_transport import transport_warning
from sagemaker_dist.planning.job import Job, Obstacle, Source
from sagemaker_dist.planning.job_faults import (
    construction_faults,
    construction_warnings,
    fit_faults,
)
from sagemaker_dist.planning.local_channel import LocalChannel
from sagemaker_dist.planning.local_job import (
    LocalHost,
    LocalJob,
    LocalSource,
    plan_local_job,
)
from sagemaker_dist.planning.locations import directory_of
from sagemaker_dist.planning.service import Limit, Terms

__all__ = [
    "Budget",
    "Channel",
    "CostTerms",
    "Job",
    "Limit",
    "LocalChannel",
    "LocalHost",
    "LocalJob",
    "LocalSource",
    "Obstacle",
    "Source",
    "Terms",
    "budget_of",
    "channel_faults",
    "construction_faults",
    "construction_warnings",
    "directory_of",
    "fit_faults",
    "plan_local_job",
    "transport_warning",
    "without_consequences",
]
