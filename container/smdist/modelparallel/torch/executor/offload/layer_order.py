# SPDX-License-Identifier: Apache-2.0
"""Order in which a rank needs the activations of its layers, over all actions of a step.

A layer is one call of a module that is never split, for one microbatch, with the operations up to
the next one; the user's code around the model is a layer, too. A forward action runs its layers in
order, and a backward action in reverse order. The order of the actions is fixed by the schedule, so
it is known which layers come next, also in later actions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.offload.saved_tensors import Place


class LayerOrder:
    """Layers of one rank in a step, in the order in which they are used.

    Args:
        actions: Actions of the rank, in order.
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = tuple(actions)
        self._seen: dict[tuple[int, int], int] = {}  # layers that forward passes have begun
        self._counts: dict[tuple[int, int], int] = {}  # layers of complete forward passes
        self._of_stage: dict[int, int] = {}  # layers of the latest complete forward pass

    def found(self, place: Place) -> None:
        """Record a layer of a forward pass, of which all earlier layers are known."""
        stage, microbatch, number = place
        self._seen[stage, microbatch] = number + 1

    def complete(self, stage: int, microbatch: int) -> None:
        """Record the end of a forward pass. Its number of layers is expected of later ones, too."""
        count = self._seen.get((stage, microbatch), 0)
        self._of_stage[stage] = self._counts[stage, microbatch] = count

    def count(self, action: Action) -> int | None:
        """Return the number of layers of an action; None if it cannot be known yet."""
        place = action.stage, action.microbatch
        if place in self._counts:
            return self._counts[place]
        expected = self._of_stage.get(action.stage)
        return None if expected is None else max(expected, self._seen.get(place, 0))

    def following(self, at: int, done: int, most: int) -> list[Place]:
        """Return the layers that are used next, in order, the one in use first.

        A layer is contained twice if its backward pass follows so soon.

        Args:
            at: Index of the action that runs.
            done: Number of layers of this action that have ended.
            most: Largest number of layers to return.
        """
        return list(islice(self._layers(at, done), most))

    def _layers(self, at: int, done: int) -> Iterator[Place]:
        for action in self._actions[at:]:
            count = self.count(action)
            if count is None:
                if done < self._seen.get((action.stage, action.microbatch), 0):
                    yield action.stage, action.microbatch, done
                return  # later layers are too far away to be known
            numbers = range(count) if action.do is Do.F else range(count - 1, -1, -1)
            for number in numbers[done:]:
                yield action.stage, action.microbatch, number
            done = 0
