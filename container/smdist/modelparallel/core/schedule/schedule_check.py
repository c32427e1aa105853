# SPDX-License-Identifier: Apache-2.0
"""Checks that a schedule can run, for example one from an edited plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.channels import Channels, channels_of, waits_with_buffers
from smdist.modelparallel.core.schedule.dependencies import (
    Dependencies,
    Waits,
    first_unreached,
    run,
)

_HINT = "Correct the order, or make the schedule with make_schedule()"
_WHOLE, _SPLIT = [Do.F, Do.B], [Do.F, Do.I, Do.W]


def check_schedule(schedule: Schedule, *, buffers: int | None = None) -> None:
    """Check that a schedule contains every action exactly once, and has no deadlock.

    Args:
        schedule: Schedule to check.
        buffers: Number of messages that can be sent from one rank to another before the first of
            them is received. The default is the number of microbatches.

    Raises:
        OptionError: The schedule cannot run. The error's attribute `kind` names the fault, such as
            "deadlock" or "missing_action". The error's attribute `about` names the wrong part, such
            as ("orders", rank, action).
        OptionErrors: The schedule has several faults. The error's attribute `faults` lists an
            OptionError for each.
    """
    raise_all(_wrong_ranks(schedule))
    raise_all(_wrong_actions(schedule))
    raise_all(_wrong_numbers(schedule))
    dependencies = Dependencies(schedule)
    raise_all(_too_early(dependencies))
    raise_all(_deadlock(dependencies, dependencies.waits, "the ranks wait for each other"))
    channels = channels_of(dependencies)
    raise_all(_crossings(dependencies, channels))
    if buffers is None:
        buffers = schedule.num_microbatches
    waits = waits_with_buffers(dependencies, channels, buffers)
    reason = f"the ranks wait for each other with {buffers} buffers for each channel"
    raise_all(_deadlock(dependencies, waits, reason, about="buffers"))


def _wrong_ranks(schedule: Schedule) -> Iterator[OptionError]:
    for stage, rank in enumerate(schedule.rank_of):
        if not 0 <= rank < schedule.num_ranks:
            yield OptionError(
                f"stage {stage} is on rank {rank}",
                f"the schedule has the ranks 0 to {schedule.num_ranks - 1}",
                "Place the stage on one of these ranks",
                about=("rank_of", stage),
            )
    for rank in sorted(set(range(schedule.num_ranks)) - set(schedule.rank_of)):
        yield OptionError(
            f"rank {rank} has no stage",
            "every rank needs at least one stage",
            "Place a stage on this rank",
            about="rank_of",
        )


def _wrong_actions(schedule: Schedule) -> Iterator[OptionError]:
    """Yield an error for each action of a stage or microbatch that its rank does not have."""
    for rank, order in enumerate(schedule.orders):
        for action in order:
            why = _mismatch(schedule, rank, action)
            if why:
                yield _fault("unknown_action", rank, action, f"rank {rank} has {action}", why)


def _fault(kind: str, rank: int, action: Action, what: str, why: str) -> OptionError:
    """Return an error about one action of a rank.

    Args:
        kind: Kind of the error, for programs.
        rank: Rank of the action.
        action: Wrong action.
        what: Text that says what is wrong.
        why: Text that says why it is wrong.
    """
    return OptionError(what, why, _HINT, about=("orders", rank, str(action)), kind=kind)


def _mismatch(schedule: Schedule, rank: int, action: Action) -> str | None:
    """Return the reason why a rank cannot have an action, for the error's text; None if it can."""
    if not 0 <= action.stage < len(schedule.rank_of):
        return f"the stages are 0 to {schedule.num_stages - 1}"
    if not 0 <= action.microbatch < schedule.num_microbatches:
        return f"the microbatches are 0 to {schedule.num_microbatches - 1}"
    owner = schedule.rank_of[action.stage]
    return None if owner == rank else f"stage {action.stage} is on rank {owner}"


def _wrong_numbers(schedule: Schedule) -> Iterator[OptionError]:
    """Yield an error for each action that is missing or repeated.

    Each stage needs F and either B or both I and W for each microbatch: a forward pass, and a
    backward pass that is whole or split into input gradients (I) and weight gradients (W).
    """
    done: defaultdict[tuple[int, int], list[Do]] = defaultdict(list)
    for order in schedule.orders:
        for action in order:
            done[action.stage, action.microbatch].append(action.do)
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            found = done[stage, microbatch]
            if found not in (_WHOLE, _SPLIT):  # a wrong order is reported by _too_early
                yield from _wrong_kinds(schedule.rank_of[stage], stage, microbatch, Counter(found))


def _wrong_kinds(
    rank: int, stage: int, microbatch: int, found: Counter[Do]
) -> Iterator[OptionError]:
    is_split = not found[Do.B] and bool(found[Do.I] or found[Do.W])
    for do in Do:
        action = Action(do, stage, microbatch)
        is_needed = do in (_SPLIT if is_split else _WHOLE)
        if is_needed and not found[do]:
            what = f"rank {rank} lacks {action}"
            why = "each stage needs a forward and a backward pass for each microbatch"
            yield _fault("missing_action", rank, action, what, why)
        elif not is_needed and found[do]:
            what = f"rank {rank} has {action} and {Action(Do.B, stage, microbatch)}"
            yield _fault(
                "repeated_action",
                rank,
                action,
                what,
                "a whole backward pass (B) already includes input and weight gradients (I, W)",
            )
        elif found[do] > 1:
            what = f"rank {rank} has {action} {found[do]} times"
            yield _fault(
                "repeated_action", rank, action, what, "a rank may run an action only once"
            )


def _too_early(dependencies: Dependencies) -> Iterator[OptionError]:
    """Yield an error for each action that needs the result of a later action of the same rank."""
    for rank, order in enumerate(dependencies.schedule.orders):
        for index, action in enumerate(order):
            for place in dependencies.waits[rank][index]:
                if place[0] == rank and place[1] > index:
                    needed = dependencies.at(place)
                    what = f"rank {rank} has {action} before {needed}"
                    why = f"{action} needs the result of {needed}"
                    yield _fault("action_order", rank, action, what, why)


def _deadlock(
    dependencies: Dependencies, waits: Waits, what: str, about: str = "orders"
) -> Iterator[OptionError]:
    """Yield one error if ranks wait for each other, with the action at which each rank waits.

    Args:
        dependencies: Dependencies between the schedule's actions.
        waits: Places that each action waits for, by rank and position in the rank's order. A
            place (rank, n) is reached when this rank has done its first n actions.
        what: Beginning of the error's text, such as "the ranks wait for each other".
        about: Argument of `check_schedule` that is wrong: "orders" of the schedule, or "buffers".
    """
    done = run(waits).done
    blocked = []
    for rank, order in enumerate(dependencies.schedule.orders):
        if done[rank] < len(order):
            place = first_unreached(waits[rank][done[rank]], done)
            assert place is not None
            needed = f"{dependencies.at(place)} of rank {place[0]}"
            blocked.append(f"rank {rank} waits at {order[done[rank]]} for {needed}")
    if blocked:
        yield OptionError(what, "; ".join(blocked), _HINT, about=about, kind="deadlock")


def _crossings(dependencies: Dependencies, channels: Channels) -> Iterator[OptionError]:
    """Yield an error for each message that is received in another order than it was sent.

    A channel between two ranks delivers messages in the order of their sends.
    """
    for channel, messages in channels.items():
        for (sent, _), (sent_next, _) in pairwise(messages):
            if sent > sent_next:
                first, second = (dependencies.at((channel.source, at)) for at in (sent, sent_next))
                what = (
                    f"rank {channel.target} receives the result of {first} before the result of"
                    f" {second}"
                )
                why = f"rank {channel.source} sends the result of {second} first"
                yield _fault("message_order", channel.source, first, what, why)
