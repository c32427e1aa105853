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


class DeadlockError(OptionError):
    """Error of a schedule whose ranks wait for each other, or for an action that no rank has.

    The attribute `kind` is "deadlock" or "missing_action".

    Attributes:
        waits: For each rank in the chain of waits: the rank, the action at which it waits, and the
            action that it waits for.
    """

    default_kind = "deadlock"
    waits: tuple[tuple[int, str, str], ...] = ()


def deadlock(schedule: Schedule, edges: Sequence[Edge], done: Sequence[int]) -> DeadlockError:
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
    links, waits, seen, kind = [], [], set(), "deadlock"
    while rank not in seen:
        seen.add(rank)
        action = schedule.orders[rank][done[rank]]
        wanted = _wanted(schedule, edges, action, finished)
        links.append(f"rank {rank} waits at {action} for {wanted}")
        waits.append((rank, str(action), str(wanted)))
        rank = schedule.rank_of[wanted.stage]
        if wanted not in schedule.orders[rank]:
            links.append(f"the order of rank {rank} does not contain {wanted}")
            kind = "missing_action"
            break
    error = DeadlockError(
        f"schedule {schedule.name!r} has a deadlock",
        "; ".join(links),
        "Place every action after the actions whose results it needs",
        about=about,
        kind=kind,
    )
    error.waits = tuple(waits)
    return error


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
    raise AssertionError(f"{action} is blocked, although its inputs are available: report this bug")


def _needed_by(edges: Sequence[Edge], action: Action) -> Iterator[tuple[Do, int]]:
    """Yield (kind, stage) of each result that an action needs.

    All results are of the action's microbatch. The kind B means a whole backward pass or only its
    input gradients (I).
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
