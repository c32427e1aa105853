# SPDX-License-Identifier: Apache-2.0
"""Hours and dollars of a training on each cluster, with their ranges; arithmetic only.

The hours are those of the training's steps. Start of hosts, downloads of image and data, and
checkpoints come on top.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sagemaker_dist.cli.advice.candidates import Candidate

_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Figure with the ends of its range.

    Attributes:
        low: Lower end.
        expected: The figure.
        high: Upper end.
    """

    low: float
    expected: float
    high: float

    def times(self, factor: float) -> Span:
        """Return the range with all three figures multiplied by `factor`."""
        return Span(low=self.low * factor, expected=self.expected * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWork:
    """Work of a training and its limits.

    Attributes:
        samples: Samples of one epoch.
        epochs: Number of epochs.
        base_batch: Global batch for which the learning rate was chosen.
        deadline_hours: Most hours; None for no limit.
        budget_dollars: Most dollars on demand; None for no limit.
    """

    samples: int
    epochs: int = 1
    base_batch: int
    deadline_hours: float | None = None
    budget_dollars: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One cluster with its layout, hours and dollars.

    Attributes:
        candidate: The cluster.
        layout: Layout and prediction, as the planner writes them; None if there is no layout.
        error: Fields of the planner's error; None if there is a layout.
        epoch_hours: Hours of an epoch.
        hours: Hours of all epochs.
        dollars: Dollars of all epochs on demand.
        epoch_dollars: Dollars of an epoch on demand.
        spot_dollars: Dollars of all epochs on spot instances; None if their price is unknown.
        learning_rate_factor: Global batch divided by the base batch: linear scaling of the
            learning rate (Goyal et al. 2017, arXiv 1706.02677).
    """

    candidate: Candidate
    layout: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    epoch_hours: Span | None = None
    hours: Span | None = None
    dollars: Span | None = None
    epoch_dollars: Span | None = None
    spot_dollars: Span | None = None
    learning_rate_factor: float | None = None

    @property
    def name(self) -> str:
        """Return the cluster as text, such as "2 x ml.p4d.24xlarge"."""
        return f"{self.candidate.num_hosts} x {self.candidate.instance_type}"

    @property
    def dollars_per_hour(self) -> float:
        """Return the price on demand of all hosts for one hour."""
        return self.candidate.num_hosts * self.candidate.price.usd_per_hour


def offers_of(
    candidates: Sequence[Candidate], results: Sequence[dict[str, Any]], training: TrainingWork
) -> list[Offer]:
    """Return one offer for each candidate, in their order.

    Args:
        candidates: Clusters.
        results: Results of the planner for the clusters, in the same order.
        training: Work and limits.
    """
    return [
        _offer(candidate, result, training)
        for candidate, result in zip(candidates, results, strict=True)
    ]


def _offer(candidate: Candidate, result: dict[str, Any], training: TrainingWork) -> Offer:
    if "error" in result:
        return Offer(candidate=candidate, error=result["error"])
    steps = math.ceil(training.samples / result["samples"])
    step = Span(
        low=result["low_seconds"],
        expected=result["step_seconds"],
        high=result["high_seconds"],
    )
    epoch = step.times(steps / _HOUR)
    hours = epoch.times(training.epochs)
    rate = candidate.num_hosts * candidate.price.usd_per_hour
    spot = None
    if candidate.spot is not None:
        spot = hours.times(candidate.num_hosts * candidate.spot.usd_per_hour)
    return Offer(
        candidate=candidate,
        layout=result,
        epoch_hours=epoch,
        hours=hours,
        epoch_dollars=epoch.times(rate),
        dollars=hours.times(rate),
        spot_dollars=spot,
        learning_rate_factor=result["samples"] / training.base_batch,
    )


def pareto_front(offers: Iterable[Offer]) -> list[Offer]:
    """Return the offers of which no other is both faster and cheaper, the fastest first.

    Offers without a layout are left out. Expected figures are compared.
    """
    front: list[Offer] = []
    least = math.inf
    for each in sorted((one for one in offers if one.layout is not None), key=_order):
        assert each.dollars is not None
        if each.dollars.expected < least:
            least = each.dollars.expected
            front.append(each)
    return front


def _order(offer: Offer) -> tuple[float, float]:
    assert offer.hours is not None
    assert offer.dollars is not None
    return offer.hours.expected, offer.dollars.expected
