# SPDX-License-Identifier: Apache-2.0
"""Check that a schedule can run, even if it comes from an edited plan."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.schedule.actions import Action, Do, Schedule
from smdist.modelparallel.core.schedule.channels import Channels, channels_of, waits_with_buffers
from smdist.modelparallel.core.schedule.dependencies import Flow, Waits, first_late, run

_HINT = "Fix the order, or make the schedule with make_schedule()"
_WHOLE, _SPLIT = [Do.F, Do.B], [Do.F, Do.I, Do.W]


def check_schedule(schedule: Schedule, *, buffers: int | None = None) -> None:
    """Check that a schedule contains every action, and that no rank waits forever.

    Args:
        schedule: Schedule to check.
        buffers: Number of messages that a channel between ranks holds (see `channels`). Default:
            one for each microbatch.

    Raises:
        OptionError: An action is missing, is repeated, is on the wrong rank or comes before an
            action that it needs; ranks wait for each other; messages cross. The error names the
            rank and the action. All faults of one kind are reported at once; other kinds are
            checked only if there are none.
    """
    raise_all(_wrong_ranks(schedule))
    raise_all(_wrong_actions(schedule))
    raise_all(_wrong_numbers(schedule))
    flow = Flow(schedule)
    raise_all(_too_early(flow))
    raise_all(_deadlock(flow, flow.waits, "wait for one another"))
    channels = channels_of(flow)
    raise_all(_crossings(flow, channels))
    if buffers is None:
        buffers = schedule.num_microbatches
    waits = waits_with_buffers(flow, channels, buffers)
    raise_all(_deadlock(flow, waits, f"wait for room in channels of {buffers}"))


def _wrong_ranks(schedule: Schedule) -> Iterator[OptionError]:
    for stage, rank in enumerate(schedule.rank_of):
        if not 0 <= rank < schedule.num_ranks:
            yield OptionError(
                f"stage {stage} is on rank {rank}",
                f"the schedule has ranks 0 to {schedule.num_ranks - 1}",
                "Give the stage one of them",
            )
    for rank in sorted(set(range(schedule.num_ranks)) - set(schedule.rank_of)):
        yield OptionError(f"rank {rank} has no stage", "every rank takes part", "Give it a stage")


def _wrong_actions(schedule: Schedule) -> Iterator[OptionError]:
    """Yield faults of actions with an unknown stage or microbatch, or with another rank's stage."""
    for rank, order in enumerate(schedule.orders):
        for action in order:
            why = _stranger(schedule, rank, action)
            if why:
                yield OptionError(f"rank {rank} has {action}", why, _HINT)


def _stranger(schedule: Schedule, rank: int, action: Action) -> str | None:
    if not 0 <= action.stage < len(schedule.rank_of):
        return f"there are stages 0 to {schedule.num_stages - 1}"
    if not 0 <= action.microbatch < schedule.num_microbatches:
        return f"there are microbatches 0 to {schedule.num_microbatches - 1}"
    home = schedule.rank_of[action.stage]
    return None if home == rank else f"stage {action.stage} is on rank {home}"


def _wrong_numbers(schedule: Schedule) -> Iterator[OptionError]:
    """Yield faults unless each stage takes each microbatch once: F, and either B or I and W."""
    done: defaultdict[tuple[int, int], list[Do]] = defaultdict(list)
    for order in schedule.orders:
        for action in order:
            done[action.stage, action.microbatch].append(action.do)
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            found = done[stage, microbatch]
            if found not in (_WHOLE, _SPLIT):  # a wrong order is reported by _too_early
                yield from _wrong_dos(schedule.rank_of[stage], stage, microbatch, Counter(found))


def _wrong_dos(rank: int, stage: int, microbatch: int, found: Counter[Do]) -> Iterator[OptionError]:
    is_split = not found[Do.B] and bool(found[Do.I] or found[Do.W])
    for do in Do:
        action = Action(do, stage, microbatch)
        is_wanted = do in (_SPLIT if is_split else _WHOLE)
        if is_wanted and not found[do]:
            why = "every stage takes every microbatch forward and backward"
            yield OptionError(f"rank {rank} lacks {action}", why, _HINT)
        elif not is_wanted and found[do]:
            what = f"rank {rank} has {action} and {Action(Do.B, stage, microbatch)}"
            yield OptionError(what, "B is I and W in one", _HINT)
        elif found[do] > 1:
            yield OptionError(
                f"rank {rank} has {action} {found[do]} times", "each is done once", _HINT
            )


def _too_early(flow: Flow) -> Iterator[OptionError]:
    """Yield faults of actions that come before an action that they need, on the same rank."""
    for rank, order in enumerate(flow.schedule.orders):
        for index, action in enumerate(order):
            for place in flow.waits[rank][index]:
                if place[0] == rank and place[1] > index:
                    needed = flow.at(place)
                    yield OptionError(
                        f"rank {rank} has {action} before {needed}",
                        f"{action} needs the result of {needed}",
                        _HINT,
                    )


def _deadlock(flow: Flow, waits: Waits, verb: str) -> Iterator[OptionError]:
    done = run(waits).done
    stuck = []
    for rank, order in enumerate(flow.schedule.orders):
        if done[rank] < len(order):
            late = first_late(waits[rank][done[rank]], done)
            assert late is not None
            awaited = f"rank {late[0]} to do {flow.at(late)}"
            stuck.append(f"rank {rank} is at {order[done[rank]]} and waits for {awaited}")
    if stuck:
        yield OptionError(f"ranks {verb} for ever", "; ".join(stuck), _HINT)


def _crossings(flow: Flow, channels: Channels) -> Iterator[OptionError]:
    """Yield faults of messages that a channel delivers in another order than they were sent."""
    for channel, messages in channels.items():
        for (sent, _), (sent_next, _) in pairwise(messages):
            if sent > sent_next:
                first, second = (flow.at((channel.source, at)) for at in (sent, sent_next))
                yield OptionError(
                    f"rank {channel.target} takes the result of {first} before {second}'s",
                    f"rank {channel.source} sends {second}'s first",
                    _HINT,
                )
