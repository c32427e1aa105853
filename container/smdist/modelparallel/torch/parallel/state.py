# SPDX-License-Identifier: Apache-2.0
"""What a `Parallel` is made of, apart from being a module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.executor import Arguments, PassedOn
from smdist.modelparallel.torch.parallel.cut import Split
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.parallel.work import Scene, Work
from smdist.modelparallel.torch.randomness import Draws, generators_kept, seed_generators

_AROUND: Final = ":feed"  # what the executor seeds the user's code by


@dataclass(slots=True, kw_only=True)
class State:
    """All that changes.

    Attributes:
        model: The user's; what other ranks hold has no values once it is cut.
        scene: The microbatch that is running, if one is.
        step_number: Steps with a backward pass until now.
        passes: Of them, those since gradients were reduced.
        waiting: What is to happen once the model is cut, in order.
        is_loaded: Whether values are among that.
        is_returning: Whether a backward pass outside of a step is under way.
        forwards: Forward passes since the last such step, with and without gradients.
    """

    model: nn.Module
    settings: Settings
    seed: int = 0
    split: Split | None = None
    scene: Scene | None = None
    step_number: int = 0
    passes: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    is_loaded: bool = False
    is_returning: bool = False
    forwards: Counter[tuple[int, bool]] = field(default_factory=Counter)

    @contextmanager
    def acting(self, scene: Scene) -> Iterator[None]:
        """Within it, the model's call is answered by this scene."""
        before, self.scene = self.scene, scene
        try:
            yield
        finally:
            self.scene, scene.is_open = before, False

    def draws(self, microbatch: int, count: int, repeat: int = 0) -> Draws:
        """Random numbers of one of so many microbatches of this replica."""
        replica = self.split.groups.rdp_rank if self.split is not None else 0
        number = replica * count + microbatch
        return Draws(seed=self.seed, step=self.step_number, microbatch=number, repeat=repeat)

    def next_repeat(self) -> int:
        """For a forward pass that makes no step: each draws numbers of its own."""
        kind = self.step_number, torch.is_grad_enabled()
        for old in [each for each in self.forwards if each[0] != self.step_number]:
            del self.forwards[old]
        self.forwards[kind] += 1
        return self.forwards[kind] - 1


def probe(state: State, work: Work, piece: Arguments, use: Callable[[Arguments], Any]) -> Any:
    """Run the user's code of one microbatch up to the model's call, and use what it passes there.

    Raises:
        OptionError: The function ends without calling the model.
    """
    found: list[Any] = []

    def answer(arguments: Arguments) -> Any:
        found.append(use(arguments))
        raise PassedOn

    seed = state.draws(0, 1).seed_of(_AROUND)
    with state.acting(Scene(answer=answer)), generators_kept():
        seed_generators(seed)
        try:
            work.function(*piece[0], **piece[1])
        except PassedOn:
            return found[0]
    raise not_called(work)


def not_called(work: Work) -> OptionError:
    """The model was not called."""
    return OptionError(
        f"{work.name} returned without calling the model",
        "a step takes each microbatch through the model once",
        "Call the model in it, or take @smp.step off",
    )
