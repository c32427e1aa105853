# SPDX-License-Identifier: Apache-2.0
"""Cost of a job so far and at most, from DescribeTrainingJob's answer and the price of its hosts.

SageMaker reports BillableTimeInSeconds when a job has ended. The bill is this time on each host, at
the on-demand price; spot instances make it shorter than TrainingTimeInSeconds (service model of
botocore 1.44.8, DescribeTrainingJob, read 2026-11-27). EBS volumes, S3 and warm pools are not part
of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, Final

from sagemaker_dist.catalog import LOCAL, LOCAL_PROCESS, price_of
from sagemaker_dist.contract.option_variables import USD_PER_HOUR
from sagemaker_dist.planning.budget import STOP_SECONDS
from sagemaker_dist.runners.protocol import TERMINAL, Description

_HOUR: Final = 3600


def cost_rows(found: Description, now: datetime | None = None) -> dict[str, str]:
    """Return the rows "cost" and "spot" for the description of a job.

    Without a price, the row "cost" says so; a job of this machine has then no such row. The row
    "spot" is there if SageMaker reports the saving.

    Args:
        found: DescribeTrainingJob's answer.
        now: Time up to which a running job is counted. Default: the current time.

    Raises:
        SetupError: A file of prices cannot be read.
    """
    rows = {"cost": _cost(found, now or datetime.now(timezone.utc)), "spot": _spot(found)}
    return {name: text for name, text in rows.items() if text}


def _cost(found: Description, now: datetime) -> str:
    hourly = _given_price(found) or _known_price(found)
    if isinstance(hourly, str):
        return hourly
    at = f" at {hourly:g} USD/h for all hosts"
    seconds = found.get("BillableTimeInSeconds")
    if seconds is not None:
        return f"{_usd(seconds, hourly)}, {seconds} s billed{at}"
    begun, ended = found.get("TrainingStartTime"), found.get("TrainingEndTime")
    spent = 0.0 if begun is None else ((ended or now) - begun).total_seconds()
    if found["TrainingJobStatus"] in TERMINAL:
        return f"{_usd(spent, hourly)}, {spent:.0f} s{at}"
    limit = found["StoppingCondition"]["MaxRuntimeInSeconds"] + STOP_SECONDS
    most = f"{_usd(limit, hourly)} if it runs for {limit} s, its time limit"
    return f"{_usd(spent, hourly)} so far, {most},{at}"


def _usd(seconds: float, hourly: float) -> str:
    return f"{seconds / _HOUR * hourly:.2f} USD"


def _given_price(found: Description) -> float | None:
    """Return the price of all hosts that the job was submitted with; None without one."""
    text = found.get("Environment", {}).get(USD_PER_HOUR, "")
    try:
        return float(text) if float(text) > 0 else None
    except ValueError:
        return None


def _known_price(found: Description) -> float | str:
    """Return the price of all hosts in the job's region, or a text if it is unknown."""
    resources = found["ResourceConfig"]
    hosts = list(_hosts(resources))
    if any(name in {LOCAL_PROCESS, *LOCAL} for name, _ in hosts):
        return ""
    region = found["TrainingJobArn"].split(":")[3]
    hourly, unknown = 0.0, []
    for name, count in hosts:
        price = price_of(name, region)
        if price is None:
            unknown.append(name)
        else:
            hourly += price.usd_per_hour * count
    if unknown:
        return (
            f"unknown: no price of {', '.join(unknown)} in {region};"
            " sagemaker-dist instances refresh reads it"
        )
    return hourly


def _hosts(resources: dict[str, Any]) -> Iterator[tuple[str, int]]:
    for each in resources.get("InstanceGroups") or [resources]:
        yield each["InstanceType"], each["InstanceCount"]


def _spot(found: Description) -> str:
    billed, trained = found.get("BillableTimeInSeconds"), found.get("TrainingTimeInSeconds")
    if not found.get("EnableManagedSpotTraining") or billed is None or not trained:
        return ""
    saved = (1 - billed / trained) * 100
    return f"saved {saved:.0f} %: {billed} of {trained} s billed"
