# SPDX-License-Identifier: Apache-2.0
"""Building blocks of schedules: functions that return lists of actions.

The functions alternate forwards and backwards, and split backward passes into two halves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from smdist.modelparallel.core.schedule.actions import Action, Do


def actions_of(do: Do, stage: int, microbatches: Iterable[int]) -> list[Action]:
    """Return actions of one kind on one stage, one for each of the given microbatches."""
    return [Action(do, stage, microbatch) for microbatch in microbatches]


def alternate(
    forwards: Sequence[Action], backwards: Sequence[Action], *, warmup: int
) -> list[Action]:
    """Return `warmup` forwards, then alternate backwards and forwards, then the other backwards.

    alternate(F0 F1 F2 F3, B0 B1 B2 B3, warmup=2)  ->  F0 F1 B0 F2 B1 F3 B2 B3
    """
    order = list(forwards[:warmup])
    for backward, forward in zip(backwards, forwards[warmup:], strict=False):
        order += (backward, forward)
    order += backwards[max(len(forwards) - warmup, 0) :]
    return order


def split_backward(order: Sequence[Action], *, delay: int) -> list[Action]:
    """Replace each backward pass (B) by two actions, I and W, and return the new order.

    I computes the input gradients. W computes the weight gradients, and runs later than its I. All
    W that are left over come at the end.

    split_backward(F0 B0 F1 B1 F2 B2, delay=1)  ->  F0 I0 F1 I1 W0 F2 I2 W1 W2

    Args:
        order: Actions in their order.
        delay: Number of other I that run between the I and the W of a microbatch.
    """
    split, delayed = [], deque[Action]()
    for action in order:
        if action.do is not Do.B:
            split.append(action)
            continue
        split.append(Action(Do.I, action.stage, action.microbatch))
        delayed.append(Action(Do.W, action.stage, action.microbatch))
        if len(delayed) > delay:
            split.append(delayed.popleft())
    return split + list(delayed)
