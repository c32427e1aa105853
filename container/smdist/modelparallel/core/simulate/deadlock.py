# SPDX-License-Identifier: Apache-2.0
"""Explanation of a deadlock in a schedule: which rank waits for which action.

A blocked rank waits, at the next action of its order, for an action of another rank. The other rank
may be blocked, too, and so on. The chain of these waits ends at a rank that is already part of it,
or at an action that no rank has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.placement import Edge
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule


def deadlock(schedule: Schedule, edges: Sequence[Edge], done: Sequence[int]) -> OptionError:
    """Return the error of a deadlock, with the chain of waiting ranks.

    Args:
        schedule: Schedule with the deadlock.
        edges: Values sent between stages.
        done: Number of actions that each rank finished, by rank.
    """
    finished = set(
        chain.from_iterable(
            order[:count] for order, count in zip(schedule.orders, done, strict=True)
        )
    )
    rank = next(rank for rank, count in enumerate(done) if count < len(schedule.orders[rank]))
    about = ("orders", rank, str(schedule.orders[rank][done[rank]]))
    links, seen = [], set()
    while rank not in seen:
        seen.add(rank)
        action = schedule.orders[rank][done[rank]]
        wanted = _wanted(schedule, edges, action, finished)
        links.append(f"rank {rank} waits at {action} for {wanted}")
        rank = schedule.rank_of[wanted.stage]
        if wanted not in schedule.orders[rank]:
            links.append(f"the order of rank {rank} does not contain {wanted}")
            break
    return OptionError(
        f"schedule {schedule.name!r} has a deadlock",
        "; ".join(links),
        "Place every action after the actions whose results it needs",
        about=about,
        kind="deadlock",
    )


def _wanted(
    schedule: Schedule, edges: Sequence[Edge], action: Action, finished: set[Action]
) -> Action:
    """Return the first unfinished action that an action waits for.

    Args:
        schedule: Schedule with the deadlock.
        edges: Values sent between stages.
        action: Action that waits.
        finished: All actions that were finished.
    """
    backward = Do.I if schedule.splits_backward else Do.B
    for do, stage in _needed_by(edges, action):
        kinds = (Do.B, Do.I) if do is Do.B else (do,)
        actions = [Action(kind, stage, action.microbatch) for kind in kinds]
        if finished.isdisjoint(actions):
            ordered = set(schedule.orders[schedule.rank_of[stage]])
            return next(
                (a for a in actions if a in ordered),
                Action(backward if do is Do.B else do, stage, action.microbatch),
            )
    raise AssertionError(f"{action} waits for nothing")


def _needed_by(edges: Sequence[Edge], action: Action) -> Iterator[tuple[Do, int]]:
    """Yield (kind, stage) of each action whose result an action needs, for the same microbatch.

    The kind B stands for a whole backward pass (B) or for its input gradients (I).
    """
    if action.do is Do.W:
        yield Do.I, action.stage
    elif action.do is Do.F:
        yield from ((Do.F, edge.source) for edge in edges if edge.target == action.stage)
    else:
        yield Do.F, action.stage
        yield from (
            (Do.B, edge.target)
            for edge in edges
            if edge.source == action.stage and edge.has_gradient
        )
