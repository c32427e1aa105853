# SPDX-License-Identifier: Apache-2.0
"""Builder of a rank's order of actions, for schedules that are defined in phases."""

from __future__ import annotations

from collections import Counter, deque

from smdist.modelparallel.core.schedule.actions import Action, Do


class OrderBuilder:
    """Builder of one rank's order of actions.

    Callers name only the kind and the stage of an action; the builder adds the microbatch. The
    forward passes of a stage get the microbatches 0, 1, 2, ..., and so do its backward passes.

    Attributes:
        order: Actions added so far.
    """

    def __init__(self) -> None:
        self.order: list[Action] = []
        self._forwards: Counter[int] = Counter()
        self._backwards: Counter[int] = Counter()
        self._delayed: deque[Action] = deque()  # W that follow later, the oldest first

    def repeat(self, times: int, *steps: tuple[Do, int]) -> None:
        """Add actions of the given kinds and stages, one after another, `times` times.

        Args:
            times: Number of repetitions.
            steps: (kind, stage) of each action.
        """
        for _ in range(times):
            for do, stage in steps:
                self._add(do, stage)

    def add_weight_gradients(self, times: int) -> None:
        """Add weight gradients (W) for the oldest input gradients (I) that have no W yet.

        The input gradients may belong to any stage of the rank.

        Args:
            times: Number of W to add.
        """
        for _ in range(times):
            self.order.append(self._delayed.popleft())

    def add_weight_gradients_of(self, stage: int) -> None:
        """Add weight gradients (W) for all input gradients (I) of a stage that have no W yet.

        They are added in the order of the input gradients.
        """
        for action in [action for action in self._delayed if action.stage == stage]:
            self._add_weight_gradient(action)

    def _add(self, do: Do, stage: int) -> None:
        """Add one action, with the next microbatch of its stage."""
        if do is Do.W:
            self._add_weight_gradient(
                next(action for action in self._delayed if action.stage == stage)
            )
            return
        counts = self._forwards if do is Do.F else self._backwards
        action = Action(do, stage, counts[stage])
        counts[stage] += 1
        self.order.append(action)
        if do is Do.I:
            self._delayed.append(Action(Do.W, stage, action.microbatch))

    def _add_weight_gradient(self, action: Action) -> None:
        self._delayed.remove(action)
        self.order.append(action)
