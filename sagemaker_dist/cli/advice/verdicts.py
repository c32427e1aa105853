# SPDX-License-Identifier: Apache-2.0
"""Choice among offers: the cheapest that meets the limits, and why each cheaper one does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sagemaker_dist.cli.advice.offers import Offer, Span, TrainingWork, pareto_front
from sagemaker_dist.errors import OptionError

_GIB: Final = 2**30


class Verdict(Enum):
    """Relation of an offer to the limits of the training.

    MEETS: the whole range is within all limits. MAY_MISS: a limit is inside the range. MISSES: the
    whole range is beyond a limit. NO_LAYOUT: the model does not fit, or cannot be divided.
    """

    MEETS = "meets"
    MAY_MISS = "may_miss"
    MISSES = "misses"
    NO_LAYOUT = "no_layout"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Reason why an offer that is cheaper than the choice is not chosen.

    Attributes:
        offer: The offer.
        verdict: Its relation to the limits.
        text: The reason as one line.
    """

    offer: Offer
    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Comparison of all offers.

    Attributes:
        offers: All offers.
        front: Offers of which no other is both faster and cheaper, the fastest first.
        choice: Cheapest offer that meets the limits or, if none does for certain, the cheapest
            that may miss one; None if all miss them.
        reasons: One reason for each cheaper offer, and for each without a layout.
    """

    offers: Sequence[Offer]
    front: Sequence[Offer]
    choice: Offer | None
    reasons: Sequence[Reason]

    @property
    def dominated(self) -> list[Offer]:
        """Offers with a layout that are not on the front: another is faster and cheaper."""
        return [each for each in self.offers if each.layout is not None and each not in self.front]


def advice_of(offers: Sequence[Offer], training: TrainingWork) -> Advice:
    """Return the choice among offers, with its reasons.

    Raises:
        OptionError: The model has no layout on any cluster; the error says what would fit.
    """
    possible = [each for each in offers if each.layout is not None]
    if not possible:
        raise _fits_nowhere(offers)
    choice = None
    for wanted in (Verdict.MEETS, Verdict.MAY_MISS):
        those = [each for each in possible if verdict_of(each, training) is wanted]
        choice = choice or min(those, key=_dollars, default=None)
    limit = float("inf") if choice is None else _dollars(choice)
    others = [each for each in possible if _dollars(each) < limit and each is not choice]
    others = sorted(others, key=_dollars) + [each for each in offers if each.layout is None]
    reasons = [
        Reason(offer=each, verdict=verdict_of(each, training), text=_why(each, training))
        for each in others
    ]
    return Advice(offers=offers, front=pareto_front(offers), choice=choice, reasons=reasons)


def verdict_of(offer: Offer, training: TrainingWork) -> Verdict:
    """Return the relation of an offer to the limits."""
    if offer.hours is None or offer.dollars is None:
        return Verdict.NO_LAYOUT
    limits = (
        (offer.hours, training.deadline_hours),
        (offer.dollars, training.budget_dollars),
    )
    if any(most is not None and figure.low > most for figure, most in limits):
        return Verdict.MISSES
    if any(most is not None and figure.high > most for figure, most in limits):
        return Verdict.MAY_MISS
    return Verdict.MEETS


def span(figure: Span, unit: str = "") -> str:
    """Return a range as text, such as "3.1 h (2.3 to 4.0)"."""
    ends = f"{_short(figure.low)} to {_short(figure.high)}"
    return f"{_short(figure.expected)}{unit} ({ends})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _dollars(offer: Offer) -> float:
    assert offer.dollars is not None
    return offer.dollars.expected


def _why(offer: Offer, training: TrainingWork) -> str:
    if offer.error is not None:
        return f"{offer.error['why']}"
    assert offer.hours is not None
    assert offer.dollars is not None
    found = []
    for figure, most, unit, name in (
        (offer.hours, training.deadline_hours, " h", "deadline"),
        (offer.dollars, training.budget_dollars, " USD", "budget"),
    ):
        if most is not None and figure.high > most:
            verb = "misses" if figure.low > most else "may miss"
            found.append(f"{verb} the {name} of {_short(most)}{unit}: {span(figure, unit)}")
    return "; ".join(found)


def _fits_nowhere(offers: Sequence[Offer]) -> OptionError:
    """Return the error of a comparison without any layout, with what would fit."""
    errors = [(each, each.error) for each in offers if each.error is not None]
    full = [(one, error) for one, error in errors if error.get("least_bytes")]
    if not full:
        offer, error = errors[0]
        return OptionError(
            f"no cluster has a layout; on {offer.name}, {error['what']}",
            error["why"],
            error["hint"],
            about=error["about"] or (),
            kind=error["kind"],
        )
    offer, error = min(full, key=lambda each: _lack(*each))
    device = offer.candidate.cluster.device
    return OptionError(
        f"the model fits on none of {len(offers)} clusters",
        f"{offer.name} comes nearest: a rank needs {error['least_bytes'] / _GIB:.3g} GiB and may"
        f" use {device.memory_bytes / _GIB:.3g} GiB",
        f"{error['hint']}; --counts and --instance-type choose other clusters",
        about="instance_type",
        kind="memory",
    )


def _lack(offer: Offer, error: dict[str, float]) -> float:
    return error["least_bytes"] / offer.candidate.cluster.device.memory_bytes
