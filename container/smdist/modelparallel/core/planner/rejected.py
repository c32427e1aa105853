# SPDX-License-Identifier: Apache-2.0
"""Best alternatives to the chosen plan, with the reasons why the planner rejected them.

Alternatives have other parallel degrees, another schedule, or another number of microbatches. At
most 4 alternatives of each of these three kinds are returned.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from smdist.modelparallel.core.plan import Rejected
from smdist.modelparallel.core.plan.number_format import share, size, slower
from smdist.modelparallel.core.planner.candidate_search import Search
from smdist.modelparallel.core.planner.candidates import Candidate
from smdist.modelparallel.core.planner.evaluate import SimulatedCandidate
from smdist.modelparallel.core.planner.infeasible import leanest, memory_sentence

_MOST: Final = 4  # largest number of candidates of each kind


def rejected(
    search: Search, tried: tuple[Candidate, ...], best: SimulatedCandidate
) -> tuple[Rejected, ...]:
    """Return the best rejected candidates with other degrees, schedules and microbatches.

    Args:
        search: Search that evaluated the candidates.
        tried: All candidates of this search.
        best: Candidate that was chosen.
    """
    chosen = best.candidate
    same = [each for each in tried if each.pipeline == chosen.pipeline]
    like = [each for each in same if each.schedule == chosen.schedule]
    kinds: dict[str, tuple[list[Candidate], Callable[[Candidate], Hashable]]] = {
        "degrees": ([each for each in tried if each not in same], lambda each: each.pipeline),
        "schedule": ([each for each in same if each not in like], lambda each: each.schedule),
        "microbatches": (
            [each for each in like if each.num_microbatches != chosen.num_microbatches],
            lambda each: each.num_microbatches,
        ),
    }
    return tuple(
        found
        for differs, (group, key) in kinds.items()
        for nearest in _nearest(search, group, key)
        for found in [_rejection(search, nearest, best, differs)]
    )


def _nearest(
    search: Search, group: Iterable[Candidate], key: Callable[[Candidate], Hashable]
) -> list[list[Candidate]]:
    """Group candidates by a key, such as the schedule, and return the 4 most promising groups.

    A group is promising if one of its candidates has a small lower bound on the time of a step.

    Args:
        search: Search that evaluated the candidates.
        group: Candidates to group.
        key: Function that returns the key of a candidate, such as its schedule.
    """
    groups: dict[Hashable, list[Candidate]] = {}
    for candidate in group:
        groups.setdefault(key(candidate), []).append(candidate)
    at_least = search.evaluator.at_least
    return sorted(groups.values(), key=lambda each: min(map(at_least, each)))[:_MOST]


def _rejection(
    search: Search, group: list[Candidate], best: SimulatedCandidate, differs: str
) -> Rejected:
    trial = search.best(group)
    if trial is not None:
        return _slower(trial, best, differs)
    full = [each for each in group if search.misfits[each].why is None]
    least = min(map(search.evaluator.least_bytes, full), default=0)
    if least and not any(map(search.evaluator.may_fit, full)):
        what, sentence = str(full[-1]), f"its fullest rank needs at least {size(least)}"
        return Rejected(what=what, differs=differs, group="memory", why=sentence)
    for lean in leanest(search, full):
        sentence = memory_sentence(lean)
        what = str(lean.candidate)
        return Rejected(what=what, differs=differs, group="memory", why=sentence)
    why = search.misfits[group[0]].why
    assert why is not None
    first = getattr(why, "faults", (why,))[0]
    what = str(group[0])
    return Rejected(
        what=what, differs=differs, group="impossible", why=f"{first.what}: {first.why}"
    )


def _slower(trial: SimulatedCandidate, best: SimulatedCandidate, differs: str) -> Rejected:
    """Return the report data of a candidate that can run but is not faster than the best one.

    Args:
        trial: Simulated candidate.
        best: Candidate that was chosen.
        differs: Difference between the two: "degrees", "schedule" or "microbatches".
    """
    factor = trial.seconds_per_sample / best.seconds_per_sample if best.seconds_per_sample else 1
    why = slower(factor)
    if trial.candidate.pipeline > 1:
        why += f"; its ranks wait {share(trial.timeline.bubble_fraction)} of the time"
    return Rejected(
        what=str(trial.candidate),
        differs=differs,
        group="slower",
        why=why,
        step_seconds=trial.timeline.step_seconds,
        samples_per_second=1 / trial.seconds_per_sample if trial.seconds_per_sample else 0.0,
    )
