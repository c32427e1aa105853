# SPDX-License-Identifier: Apache-2.0
"""Agreement of ranks when a session starts: all go on, or all stop with the same error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from sagemaker_dist.contract.model_parallel import ModelParallel
from sagemaker_dist.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Options of one rank, for the exchange with all others.

    Attributes:
        options: Options of the rank; None if they are wrong. The path of a plan may differ by host.
        plan: Digest of the plan's file; "" without a plan.
        fault: Fault of the rank, as text; "" for none.
        host: Name that is equal for ranks of one host.
        local_rank: Number on the host that the launcher set, if it did.
    """

    options: ModelParallel | None
    plan: str = ""
    fault: str = ""
    host: str = ""
    local_rank: int | None = None


def check(cards: Sequence[RankOptions]) -> None:
    """Raise the same error on every rank if one of them has a fault or other options.

    Raises:
        OptionError: A rank has a fault or differs; names the first such rank, and the difference.
    """
    for rank, card in enumerate(cards):
        if card.fault:
            raise OptionError(
                f"smp.init failed on rank {rank}", card.fault.rstrip("."), "Fix that rank's request"
            )
    for rank, card in enumerate(cards):
        differences = list(_differences(cards[0], card))
        if differences:
            raise OptionError(
                f"smp.init was given different configurations on ranks 0 and {rank}",
                "; ".join(differences),
                "Give every rank the same one",
            )


def place(cards: Sequence[RankOptions], rank: int) -> tuple[int, int]:
    """Return the number of a rank on its host, and the number of ranks there."""
    host = cards[rank].host
    there = [each for each, card in enumerate(cards) if card.host == host]
    told = cards[rank].local_rank
    return (there.index(rank) if told is None else told), len(there)


def check_same(running: ModelParallel, options: ModelParallel) -> None:
    """Check that another call of smp.init has the options of the first.

    Raises:
        OptionError: Options differ; names those that do.
    """
    differences = list(_differences(RankOptions(options=running), RankOptions(options=options)))
    if running != options:
        raise OptionError(
            f"smp.init was called again with another configuration ({'; '.join(differences)})",
            "there is one session, and its groups are made",
            "Call smp.init once",
        )


def _differences(first: RankOptions, other: RankOptions) -> Iterator[str]:
    for each in fields(ModelParallel):
        here, there = getattr(first.options, each.name), getattr(other.options, each.name)
        is_told = each.name != "plan" or None in (here, there) or not (first.plan or other.plan)
        if here != there and is_told:
            yield f"{each.name} is {here!r} and {there!r}"
    if first.plan != other.plan and first.plan and other.plan:
        yield "the files of the plan say different things"
