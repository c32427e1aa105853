# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other when a session starts, so that all go on, or all stop alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One rank's.

    Attributes:
        options: What it was given; None where that is wrong. Each host has its own path of a plan.
        plan: Stands for what the plan's file says; "" without one.
        fault: What is wrong with it, as text.
        host: Equal for ranks of one host.
        local_rank: What the launcher calls it there, if it did.
    """

    options: ModelParallel | None
    plan: str = ""
    fault: str = ""
    host: str = ""
    local_rank: int | None = None


def check(cards: Sequence[Card]) -> None:
    """Raise the same error on every rank where one of them cannot go on, or goes elsewhere.

    Raises:
        OptionError: Names the first rank that differs, and how.
    """
    for rank, card in enumerate(cards):
        if card.fault:
            raise OptionError(
                f"smp.init failed on rank {rank}", card.fault.rstrip("."), "Mend that one's"
            )
    for rank, card in enumerate(cards):
        differences = list(_differences(cards[0], card))
        if differences:
            raise OptionError(
                f"smp.init was given different configurations on ranks 0 and {rank}",
                "; ".join(differences),
                "Give every rank the same one",
            )


def place(cards: Sequence[Card], rank: int) -> tuple[int, int]:
    """Number of a rank on its host, and how many ranks are there."""
    host = cards[rank].host
    there = [each for each, card in enumerate(cards) if card.host == host]
    told = cards[rank].local_rank
    return (there.index(rank) if told is None else told), len(there)


def check_same(running: ModelParallel, options: ModelParallel) -> None:
    """Another call of smp.init has the options of the first.

    Raises:
        OptionError: Names those that differ.
    """
    differences = list(_differences(Card(options=running), Card(options=options)))
    if running != options:
        raise OptionError(
            f"smp.init was called again with another configuration ({'; '.join(differences)})",
            "there is one session, and its groups are made",
            "Call smp.init once",
        )


def _differences(first: Card, other: Card) -> Iterator[str]:
    for each in fields(ModelParallel):
        here, there = getattr(first.options, each.name), getattr(other.options, each.name)
        is_told = each.name != "plan" or None in (here, there) or not (first.plan or other.plan)
        if here != there and is_told:
            yield f"{each.name} is {here!r} and {there!r}"
    if first.plan != other.plan and first.plan and other.plan:
        yield "the files of the plan say different things"
