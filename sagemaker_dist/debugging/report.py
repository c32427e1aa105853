# SPDX-License-Identifier: Apache-2.0
"""Report on the operations of all ranks: as data for programs, and as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from sagemaker_dist.debugging.divergence import Divergence, find_divergences
from sagemaker_dist.debugging.dump_files import Dumps
from sagemaker_dist.debugging.operations import RankHistory

_MOST: Final = 8  # ranks that a sentence names
_OLD_SECONDS: Final = 5.0  # a rank whose files are older than others by this did not answer


def report_of(dumps: Dumps) -> dict[str, Any]:
    """Return the report as JSON-like data; docs/debugging.md explains its keys."""
    histories = [dumps.histories[rank] for rank in sorted(dumps.histories)]
    size = max((each.size for each in histories), default=0)
    return {
        "size": size,
        "ranks": [_rank(each, dumps) for each in histories],
        "without_history": [rank for rank in range(size) if rank not in dumps.histories],
        "old_history": [each.rank for each in _old(histories)],
        "states": {str(rank): dumps.states[rank] for rank in sorted(dumps.states)},
        "divergences": [_divergence(each) for each in find_divergences(histories)],
        "notes": dumps.notes,
    }


def _rank(history: RankHistory, dumps: Dumps) -> dict[str, Any]:
    return {
        "rank": history.rank,
        "name": history.name,
        "reason": history.reason,
        "written_at": history.written_at,
        "fault": history.fault,
        "pending": None if history.pending is None else asdict(history.pending),
        "last": None if history.last is None else asdict(history.last),
        "has_stacks": history.rank in dumps.stacks,
    }


def _divergence(found: Divergence) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "group": found.group,
        "sequence": found.sequence,
        "part": found.part,
        "calls": [{"call": call, "ranks": list(ranks)} for call, ranks in found.calls.items()],
        "missing": [
            {"rank": rank, "last": None if last is None else asdict(last)}
            for rank, last in found.missing.items()
        ],
        "waits_since": found.waits_since,
        "unknown": list(found.unknown),
    }


def sentences(dumps: Dumps) -> Iterator[str]:
    """Yield the report as lines for people: first the ranks that keep the others waiting."""
    histories = [dumps.histories[rank] for rank in sorted(dumps.histories)]
    divergences = find_divergences(histories)
    for rank in sorted(dumps.states):
        yield f"rank {rank}: {dumps.states[rank].get('text', 'its process does not run')}"
    yield from _faults(histories)
    for each in divergences:
        yield from _sentences_of(each, dumps)
    yield from _silent(histories, dumps)
    if histories and not divergences:
        yield "all ranks that have left a history called the same operations"
    for history in histories:
        if history.pending is not None:
            waited = history.written_at - history.pending.submitted
            yield (
                f"{history.name}: in operation {history.pending.sequence} of group"
                f" {history.pending.group}, {history.pending.text}, for {waited:.1f} s"
            )
    yield from dumps.notes


def _faults(histories: Sequence[RankHistory]) -> Iterator[str]:
    """Yield the faults that ranks have, each once, with these ranks; the first one first."""
    ranks: dict[str, list[int]] = {}
    for each in sorted(histories, key=lambda history: history.written_at):
        if each.fault is not None:
            ranks.setdefault(str(each.fault.get("text", "an unknown fault")), []).append(each.rank)
    for text, own in ranks.items():
        yield f"{named(sorted(own))} failed: {text}"


def _silent(histories: Sequence[RankHistory], dumps: Dumps) -> Iterator[str]:
    """Yield the ranks without files, and those that have not written theirs anew."""
    size = max((each.size for each in histories), default=0)
    without = [rank for rank in range(size) if rank not in dumps.histories]
    if without:
        yield f"no history: {named(without)} of {size} ranks"
    newest = max((each.written_at for each in histories), default=0.0)
    for each in _old(histories):
        yield f"{each.name}: its files are {newest - each.written_at:.0f} s older than others"


def _old(histories: Sequence[RankHistory]) -> list[RankHistory]:
    newest = max((each.written_at for each in histories), default=0.0)
    return [each for each in histories if newest - each.written_at > _OLD_SECONDS]


def _sentences_of(found: Divergence, dumps: Dumps) -> Iterator[str]:
    operation = f"operation {found.sequence}{f', part {found.part}' if found.part else ''}"
    late = named(found.missing) if found.missing else ""
    if late and found.kind == "missing":
        verb = "has" if len(found.missing) == 1 else "have"
        yield f"group {found.group}: {late} {verb} not called {operation}"
    else:
        yield f"group {found.group}: ranks differ from {operation} on"
    for call, ranks in found.calls.items():
        yield f"  {named(ranks)} called {call}"
    for rank, last in found.missing.items():
        before = "no operation before" if last is None else f"its last: {last.text}"
        when = "" if last is None else f", operation {last.sequence} of group {last.group}"
        yield f"  rank {rank} has not called it; {before}{when}"
        if rank in dumps.stacks:
            yield f"  rank {rank} is at: {_innermost(dumps.stacks[rank])} (stacks-rank-{rank}.txt)"


def _innermost(stacks: str) -> str:
    """Return the line of the call in which the main thread is; faulthandler writes it last."""
    lines = [line.strip() for line in stacks.splitlines()]
    headers = (number for number, line in enumerate(lines) if line.endswith("call first):"))
    calls = lines[max(headers, default=-1) + 1 :]
    return next((line for line in calls if line.startswith("File ")), "no Python code")


def named(ranks: Iterable[int]) -> str:
    """Return "rank 3", "ranks 3 and 7", or for many "ranks 0, 1, ... 7 and 12 more"."""
    every = list(ranks)
    if len(every) == 1:
        return f"rank {every[0]}"
    texts = [str(rank) for rank in every[:_MOST]]
    if len(every) > _MOST:
        return f"ranks {', '.join(texts)} and {len(every) - _MOST} more"
    return f"ranks {', '.join(texts[:-1])} and {texts[-1]}"
