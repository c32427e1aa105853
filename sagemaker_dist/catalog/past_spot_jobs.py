# SPDX-License-Identifier: Apache-2.0
"""Prices on spot instances, from what SageMaker billed for the account's own past jobs.

AWS publishes no spot price of training instances. DescribeTrainingJob reports TrainingTimeInSeconds
and BillableTimeInSeconds; the bill is the second at the on-demand price (service model of botocore
1.44.8, read 2026-11-27). So the price of a type on spot instances was, on average over past jobs:

    on-demand price x sum of BillableTimeInSeconds / sum of TrainingTimeInSeconds
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any, Final

from sagemaker_dist.catalog.aws_answers import boto3_errors_translated
from sagemaker_dist.catalog.prices import PriceNote, price_of

_WHAT: Final = "Amazon SageMaker"
_PERMISSION: Final = "sagemaker:ListTrainingJobs and sagemaker:DescribeTrainingJob"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotJobs:
    """Times of past jobs on spot instances of one type.

    Attributes:
        num_jobs: Number of jobs.
        training_seconds: Time that they trained.
        billable_seconds: Time that was billed, at the on-demand price.
    """

    num_jobs: int = 0
    training_seconds: int = 0
    billable_seconds: int = 0

    @property
    def paid_share(self) -> float:
        """Part of the on-demand price that was paid, such as 0.3."""
        return self.billable_seconds / self.training_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PastSpotJobs:
    """Past jobs on spot instances in one region.

    Attributes:
        region: AWS region.
        since: First day whose jobs were read, YYYY-MM-DD.
        num_read: Number of jobs that were read, with those on demand.
        by_type: Times by instance type.
    """

    region: str
    since: str
    num_read: int
    by_type: dict[str, SpotJobs]

    def note(self) -> PriceNote:
        """Return the price of each type whose on-demand price in the region is known.

        Raises:
            SetupError: A file of prices cannot be read.
        """
        found = {}
        for name, jobs in sorted(self.by_type.items()):
            price = price_of(name, self.region)
            if price is not None and jobs.billable_seconds:
                found[name] = round(price.usd_per_hour * jobs.paid_share, 4)
        counted = sum(self.by_type[name].num_jobs for name in found)
        return PriceNote(
            source=f"BillableTimeInSeconds of {counted} past spot jobs since {self.since}, at the"
            " on-demand price",
            date=datetime.now(timezone.utc).date().isoformat(),
            region=self.region,
            spot_usd_per_hour=found,
        )


def read_spot_jobs(
    session: Any, *, days: int, most: int, tick: Callable[[int], None] = lambda _: None
) -> PastSpotJobs:
    """Return the times of the jobs on spot instances that ended in the last days.

    The calls are free of charge and change nothing. Each job takes one call of DescribeTrainingJob,
    since a list of jobs does not say which ran on spot instances. A job on several instance types
    is left out.

    Args:
        session: boto3 session.
        days: Number of days to look back.
        most: Largest number of jobs to read; the latest are read first.
        tick: Function that is called after each job, with the number of jobs read.

    Raises:
        SetupError: SageMaker did not answer: no region, credentials, permission or network.
    """
    with boto3_errors_translated(_WHAT, session.region_name, _PERMISSION):
        sagemaker = session.client("sagemaker")
    since = datetime.now(timezone.utc) - timedelta(days=days)
    by_type: dict[str, SpotJobs] = {}
    number = 0
    with boto3_errors_translated(_WHAT, sagemaker.meta.region_name, _PERMISSION):
        for number, name in enumerate(islice(_names(sagemaker, since), most), 1):
            found = sagemaker.describe_training_job(TrainingJobName=name)
            tick(number)
            trained, billed = found.get("TrainingTimeInSeconds"), found.get("BillableTimeInSeconds")
            instance_type = _one_type(found["ResourceConfig"])
            if not (found.get("EnableManagedSpotTraining") and trained and instance_type):
                continue
            before = by_type.get(instance_type, SpotJobs())
            by_type[instance_type] = SpotJobs(
                num_jobs=before.num_jobs + 1,
                training_seconds=before.training_seconds + trained,
                billable_seconds=before.billable_seconds + (billed or 0),
            )
    return PastSpotJobs(
        region=sagemaker.meta.region_name, since=since.date().isoformat(), num_read=number,
        by_type=by_type,
    )  # fmt: skip


def _names(sagemaker: Any, since: datetime) -> Iterator[str]:
    pages = sagemaker.get_paginator("list_training_jobs").paginate(
        CreationTimeAfter=since, SortBy="CreationTime", SortOrder="Descending"
    )
    for page in pages:
        for each in page["TrainingJobSummaries"]:
            if each.get("TrainingEndTime") is not None:
                yield each["TrainingJobName"]


def _one_type(resources: dict[str, Any]) -> str | None:
    """Return the instance type of all hosts; None if there are several."""
    groups = resources.get("InstanceGroups") or [resources]
    names = {each["InstanceType"] for each in groups}
    return names.pop() if len(names) == 1 else None
