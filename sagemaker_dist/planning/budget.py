# SPDX-License-Identifier: Apache-2.0
"""Time limit of a job that follows from `max_cost=`, the most that the job may cost.

    |<-- image -->|<------------ MaxRuntimeInSeconds ------------>|<-- SIGTERM -->|
    |<------------------- max_cost / price of all hosts ------------------------->|

SageMaker stops a job by SIGTERM when MaxRuntimeInSeconds has passed, and ends it 120 s later. It
bills from TrainingStartTime, before the download of the image, to TrainingEndTime, after the upload
of the model (StoppingCondition and DescribeTrainingJob in the service model of botocore 1.44.8,
read 2026-11-27). The 120 s, the download of the image and the idle time of a warm pool are
subtracted. The upload of the model is not: its duration is not known before the job.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sagemaker_dist.catalog import Price, is_price
from sagemaker_dist.contract.option_variables import USD_PER_HOUR
from sagemaker_dist.errors import OptionError, parts_of, raise_all

STOP_SECONDS: Final = 120
IMAGE_SECONDS: Final = 300  # an assumption: AWS states no time, and an image may have 20 GB
_LEAST_SECONDS: Final = 60  # a shorter run would train nothing
_PLACEHOLDER: Final = "<"  # begins the stand-in of a region that is not set
_HOUR: Final = 3600
_UNKNOWN_PRICE: Final = "unknown_price"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Most that a job may cost, and the time that this pays for.

    Attributes:
        max_cost: Most that the job may cost, in US dollars.
        usd_per_hour: Price of all hosts of the job, in US dollars per hour.
        hosts: Hosts with their prices, for messages.
        reserve_seconds: Paid time that is not part of MaxRuntimeInSeconds.
        reserve: Parts of that time, for messages.
        is_spot: True on spot instances, whose price is not known beforehand.
    """

    max_cost: float
    usd_per_hour: float
    hosts: str
    reserve_seconds: int
    reserve: str
    is_spot: bool = False

    @property
    def paid_seconds(self) -> int:
        """Return the time for which `max_cost` pays, in whole seconds."""
        return math.floor(self.max_cost * _HOUR / self.usd_per_hour)

    @property
    def run_seconds(self) -> int:
        """Return the longest duration of the job before SIGTERM, in seconds."""
        return self.paid_seconds - self.reserve_seconds

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variable by which the ranks know the price of the job."""
        return {USD_PER_HOUR: f"{self.usd_per_hour:.6g}"}

    def limit(self, max_run: int) -> int:
        """Return the job's MaxRuntimeInSeconds: the budget's limit, or `max_run` if lower."""
        return min(max_run, self.run_seconds)

    def line(self, max_run: int) -> str:
        """Return one line for the user: the time limit of the job, and how it was computed.

        `max_run` is the option of the job, in seconds.
        """
        limit = self.limit(max_run)
        own = ", from max_run" if limit < self.run_seconds else ""
        spot = " On spot instances it costs less: this is the on-demand price." * self.is_spot
        return (
            f"max_cost={self.max_cost:g} USD pays {self.hosts} for {self.paid_seconds} s;"
            f" without {self.reserve}, the job is stopped by SIGTERM after"
            f" MaxRuntimeInSeconds={limit}{own}.{spot}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTerms:
    """Options of a job from which its budget follows.

    Attributes:
        max_cost: The option max_cost.
        price_per_hour: The option price_per_hour, or None.
        hosts: Instance type and number of each group of hosts; None if not known beforehand.
        prices: Known price of each instance type in the job's region.
        region: AWS region of the job; None if unknown.
        is_local: True if the job runs on this machine.
        max_run: The option max_run.
        keep_alive_seconds: Idle time of the warm pool after the job, in seconds.
        training_plan: ARN of the training plan, or None.
        is_spot: True if the job runs on spot instances.
        has_groups: True if the job has instance groups.
    """

    max_cost: Any
    price_per_hour: Any = None
    hosts: Sequence[tuple[str, int]] | None = None
    prices: Mapping[str, Price] = field(default_factory=dict)
    region: str | None = None
    is_local: bool = False
    max_run: Any = None
    keep_alive_seconds: Any = None
    training_plan: Any = None
    is_spot: bool = False
    has_groups: bool = False


def budget_of(terms: CostTerms) -> Budget | None:
    """Return the budget of a job; None without max_cost.

    Raises:
        OptionError: An option is wrong, a price is unknown, or max_cost pays for too short a run;
            all faults are reported together.
    """
    raise_all(_faults(terms))
    if terms.max_cost is None:
        return None
    assert terms.hosts is not None, "unknown hosts are a fault"
    prices = {
        name: terms.price_per_hour or terms.prices[name].usd_per_hour for name, _ in terms.hosts
    }
    parts = {f"{STOP_SECONDS} s after SIGTERM": STOP_SECONDS}
    if not terms.is_local:
        parts[f"{IMAGE_SECONDS} s assumed for the image's download"] = IMAGE_SECONDS
    if terms.keep_alive_seconds:
        parts[f"{terms.keep_alive_seconds} s of warm pool"] = terms.keep_alive_seconds
    found = Budget(
        max_cost=terms.max_cost,
        usd_per_hour=sum(prices[name] * count for name, count in terms.hosts),
        hosts=" and ".join(
            f"{count} x {name} at {prices[name]:g} USD/h" for name, count in terms.hosts
        ),
        reserve_seconds=sum(parts.values()),
        reserve=", ".join(parts),
        is_spot=terms.is_spot,
    )
    if found.run_seconds < _LEAST_SECONDS:
        least = (found.reserve_seconds + _LEAST_SECONDS) * found.usd_per_hour / _HOUR
        raise OptionError(
            f"max_cost is {terms.max_cost!r}",
            f"it pays {found.hosts} for {found.paid_seconds} s, and a job needs {found.reserve}"
            f" and at least {_LEAST_SECONDS} s of training",
            f"Pass at least {math.ceil(least * 100) / 100:g}, or fewer or cheaper hosts",
            about="max_cost",
            kind="range",
        )
    return found


def _faults(terms: CostTerms) -> Iterator[OptionError]:
    for name in ("max_cost", "price_per_hour"):
        value = getattr(terms, name)
        if value is not None and not is_price(value):
            what, hint = f"{name} is {value!r}", "Pass a number of US dollars, such as 50"
            yield OptionError(what, "it is not a finite number above 0", hint, name, "range")
    if terms.max_cost is None:
        if terms.price_per_hour is not None:
            why = "the price of a host has an effect only with max_cost"
            hint = "Pass max_cost too, or leave price_per_hour out"
            yield OptionError("price_per_hour is set", why, hint, "price_per_hour", "no_effect")
        return
    yield from _conflicts(terms)
    if terms.hosts is None:
        what = "max_cost is set, and the instance type or the number of hosts is not known"
        why = "the price of the job is not known before it runs"
        hint = "Pass instance_type and instance_count as plain values, or leave max_cost out"
        yield OptionError(what, why, hint, "max_cost", "missing")
    elif terms.price_per_hour is None:
        yield from _price_faults(terms, [name for name, _ in terms.hosts])


def _conflicts(terms: CostTerms) -> Iterator[OptionError]:
    if terms.training_plan is not None:
        why = "a training plan is paid in advance, whatever its jobs take"
        hint = "Leave max_cost out, or training_plan"
        yield OptionError("max_cost is set with training_plan", why, hint, "max_cost", "conflict")
    if terms.has_groups and terms.price_per_hour is not None:
        what = "price_per_hour is set with instance_groups"
        why = "it is the price of one host, and groups may have different instance types"
        hint = "Write the prices to ~/.sagemaker-dist/prices.json instead"
        yield OptionError(what, why, hint, "price_per_hour", "conflict")
    if terms.max_run is not None and not isinstance(terms.max_run, int):
        what = f"max_run is {terms.max_run!r} with max_cost"
        why = "the lower of the two limits is sent, so both must be known"
        hint = "Pass an int, or leave max_run out"
        yield OptionError(what, why, hint, "max_run", "type")


def _price_faults(terms: CostTerms, names: Sequence[str]) -> Iterator[OptionError]:
    if terms.is_local:
        what = f"max_cost is {terms.max_cost!r} with instance_type={names[0]!r}"
        why = "hosts on this machine have no price"
        hint = "Pass price_per_hour, the price of one emulated host, or leave max_cost out"
        yield OptionError(what, why, hint, "max_cost", _UNKNOWN_PRICE)
        return
    if not is_price(terms.max_cost):
        return
    if terms.region is None or terms.region.startswith(_PLACEHOLDER):
        yield OptionError(
            f"max_cost is {terms.max_cost!r}",
            "prices depend on the region, and the job's region is not known",
            "Pass --region to the command, set a region in your AWS settings, or pass"
            " price_per_hour",
            about="max_cost",
            kind="unknown_region",
        )
        return
    unknown = sorted({name for name in names if name not in terms.prices})
    if unknown:
        yield OptionError(
            f"max_cost is {terms.max_cost!r}",
            f"the price of {', '.join(unknown)} in region {terms.region} is not known",
            "Run sagemaker-dist instances refresh, which reads the prices of AWS, pass"
            " price_per_hour, or write them to ~/.sagemaker-dist/prices.json",
            about="max_cost",
            kind=_UNKNOWN_PRICE,
        )


def without_consequences(faults: Iterable[OptionError]) -> list[OptionError]:
    """Return faults without those that only follow from another one.

    The price of an instance type that does not exist is unknown: its type alone is reported.

    Args:
        faults: Faults of one job.
    """
    every = [part for fault in faults for part in parts_of(fault)]
    if not any(each.about == ("instance_type",) and each.kind == "unknown" for each in every):
        return every
    return [each for each in every if each.kind != _UNKNOWN_PRICE]
