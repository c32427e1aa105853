# SPDX-License-Identifier: Apache-2.0
"""The first operation of each group in which ranks differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sagemaker_dist.debugging.operations import Operation, RankHistory

_Key = tuple[int, int]  # sequence and part of a collective
_SKEW_SECONDS: Final = 1.0  # a rank that comes so late to an operation is not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """First collective of a group that not all ranks have called in the same way.

    Attributes:
        group: Number of the group.
        sequence: Number of the collective in the group.
        part: Number of the collective within its call.
        calls: What ranks have called, as text -> the ranks that called it, in their order.
        missing: Ranks that have not called it -> their last operation; None if there was none.
        waits_since: Time in seconds since 1970 of the first call; None if nobody has called it.
        unknown: Members of the group that have left no history.
    """

    group: int
    sequence: int
    part: int
    calls: Mapping[str, tuple[int, ...]]
    missing: Mapping[int, Operation | None] = field(default_factory=dict)
    waits_since: float | None = None
    unknown: tuple[int, ...] = ()

    @property
    def kind(self) -> str:
        """Return "different" if ranks have called different things, otherwise "missing"."""
        return "different" if len(self.calls) > 1 else "missing"


def find_divergences(histories: Iterable[RankHistory]) -> list[Divergence]:
    """Return the first divergence of each group that has one, by the number of the group.

    The messages of single ranks are not compared. Of a rank that has forgotten its oldest
    operations, only the later ones are. An operation that some ranks of a job without a failure
    have called less than a second before the others wrote their histories is no difference: ranks
    of a job that works come to each operation at slightly different times.
    """
    ranks = {history.rank: history for history in histories}
    members: dict[int, tuple[int, ...]] = {}
    for history in ranks.values():
        members |= history.groups
    found = (_first(group, ranks, members[group]) for group in sorted(members))
    return [each for each in found if each is not None]


def _first(
    group: int, ranks: Mapping[int, RankHistory], members: Sequence[int]
) -> Divergence | None:
    calls = {rank: dict(_collectives(ranks[rank], group)) for rank in members if rank in ranks}
    known = {rank: own for rank, own in calls.items() if own or ranks[rank].has_all}
    if not any(known.values()):
        return None
    begin = max(
        (min(own) for rank, own in known.items() if own and not ranks[rank].has_all),
        default=(0, 0),
    )
    for key in sorted({key for own in known.values() for key in own if key >= begin}):
        present = {rank: own[key] for rank, own in known.items() if key in own}
        missing = [rank for rank in known if rank not in present]
        if missing and _is_skew([ranks[rank] for rank in missing], present, ranks.values()):
            missing = []
        if missing or len({each.call for each in present.values()}) > 1:
            return _divergence(group, key, present, {rank: ranks[rank].last for rank in missing},
                               tuple(rank for rank in members if rank not in ranks))  # fmt: skip
    return None


def _is_skew(
    missing: Iterable[RankHistory],
    present: Mapping[int, Operation],
    every: Iterable[RankHistory],
) -> bool:
    """Return whether ranks have only just called what the ranks in `missing` have not."""
    if any(each.fault is not None or each.reason == "failure" for each in every):
        return False
    since = min(each.submitted for each in present.values())
    return all(each.written_at - since < _SKEW_SECONDS for each in missing)


def _collectives(history: RankHistory, group: int) -> Iterator[tuple[_Key, Operation]]:
    for each in history.operations:
        if each.group == group and each.is_collective:
            yield (each.sequence, each.part), each


def _divergence(
    group: int,
    key: _Key,
    present: Mapping[int, Operation],
    missing: Mapping[int, Operation | None],
    unknown: tuple[int, ...],
) -> Divergence:
    calls: dict[str, list[int]] = {}
    for rank in sorted(present):
        calls.setdefault(present[rank].text, []).append(rank)
    return Divergence(
        group=group,
        sequence=key[0],
        part=key[1],
        calls={text: tuple(ranks) for text, ranks in calls.items()},
        missing=missing,
        waits_since=min((each.submitted for each in present.values()), default=None),
        unknown=unknown,
    )
