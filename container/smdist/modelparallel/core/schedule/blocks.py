# SPDX-License-Identifier: Apache-2.0
"""Building blocks of schedules: runs of actions, and two runs in alternation."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from smdist.modelparallel.core.schedule.actions import Action, Do


def run_of(do: Do, stage: int, microbatches: Iterable[int]) -> list[Action]:
    """Return the same computation for one microbatch after another."""
    return [Action(do, stage, microbatch) for microbatch in microbatches]


def take_turns(
    forwards: Sequence[Action], backwards: Sequence[Action], *, lead: int
) -> list[Action]:
    """Return `lead` forwards, then backwards and forwards in turn, then the remaining backwards.

    take_turns(F0 F1 F2 F3, B0 B1 B2 B3, lead=2)  ->  F0 F1 B0 F2 B1 F3 B2 B3
    """
    order = list(forwards[:lead])
    for backward, forward in zip(backwards, forwards[lead:], strict=False):
        order += (backward, forward)
    order += backwards[max(len(forwards) - lead, 0) :]
    return order


def split_backward(order: Sequence[Action], *, wait: int) -> list[Action]:
    """Replace each B by an I; after each I but the first `wait`, insert the oldest remaining W.

    split_backward(F0 B0 F1 B1 F2 B2, wait=1)  ->  F0 I0 F1 I1 W0 F2 I2 W1 W2
    """
    split, left = [], deque[Action]()
    for action in order:
        if action.do is not Do.B:
            split.append(action)
            continue
        split.append(Action(Do.I, action.stage, action.microbatch))
        left.append(Action(Do.W, action.stage, action.microbatch))
        if len(left) > wait:
            split.append(left.popleft())
    return split + list(left)
