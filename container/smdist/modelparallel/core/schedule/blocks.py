# SPDX-License-Identifier: Apache-2.0
"""What schedules are put together from: runs of actions, and how two runs take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from smdist.modelparallel.core.schedule.actions import Action, Do


def run_of(do: Do, stage: int, microbatches: Iterable[int]) -> list[Action]:
    """The same for one microbatch after the other."""
    return [Action(do, stage, microbatch) for microbatch in microbatches]


def take_turns(
    forwards: Sequence[Action], backwards: Sequence[Action], *, lead: int
) -> list[Action]:
    """`lead` forwards, then one backward and one forward in turn, then the backwards left over.

    take_turns(F0 F1 F2 F3, B0 B1 B2 B3, lead=2)  ->  F0 F1 B0 F2 B1 F3 B2 B3
    """
    order = list(forwards[:lead])
    for backward, forward in zip(backwards, forwards[lead:], strict=False):
        order += (backward, forward)
    order += backwards[max(len(forwards) - lead, 0) :]
    return order


def split_backward(order: Sequence[Action], *, wait: int) -> list[Action]:
    """Each B becomes an I, and each I but the first `wait` is followed by the oldest W left.

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
