# SPDX-License-Identifier: Apache-2.0
"""Builder of a rank's order of actions, for schedules that are defined phase by phase."""

from __future__ import annotations

from collections import Counter, deque

from smdist.modelparallel.core.schedule.actions import Action, Do


class Script:
    """Builder of one rank's actions; it counts the next microbatch of each stage.

    Each stage takes the microbatches in order, forward and backward.
    """

    def __init__(self) -> None:
        self.order: list[Action] = []
        self._forwards: Counter[int] = Counter()
        self._backwards: Counter[int] = Counter()
        self._left: deque[Action] = deque()  # weight gradients not computed yet, the oldest first

    def repeat(self, times: int, *steps: tuple[Do, int]) -> None:
        """Add these steps one after another, and repeat them `times` times."""
        for _ in range(times):
            for do, stage in steps:
                self._do(do, stage)

    def settle(self, times: int) -> None:
        """Add the `times` oldest remaining weight gradients, of any stage."""
        for _ in range(times):
            self.order.append(self._left.popleft())

    def settle_stage(self, stage: int) -> None:
        """Add all remaining weight gradients of one stage."""
        for action in [action for action in self._left if action.stage == stage]:
            self._settle(action)

    def _do(self, do: Do, stage: int) -> None:
        if do is Do.W:
            self._settle(next(action for action in self._left if action.stage == stage))
            return
        counts = self._forwards if do is Do.F else self._backwards
        action = Action(do, stage, counts[stage])
        counts[stage] += 1
        self.order.append(action)
        if do is Do.I:
            self._left.append(Action(Do.W, stage, action.microbatch))

    def _settle(self, action: Action) -> None:
        self._left.remove(action)
        self.order.append(action)
