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

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.torch.executor import Arguments, PassedOn
from smdist.modelparallel.torch.parallel.cut import Split
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.parallel.steps import Steps
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
        has_trained: Whether a batch was found as large as the options say.
        forwards: Forward passes since the last such step, with and without gradients.
        steps: Counts them for the lines that rank 0 prints.
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
    has_trained: bool = False
    forwards: Counter[tuple[int, bool]] = field(default_factory=Counter)
    steps: Steps = field(default_factory=Steps)

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

    def catch_up(self) -> None:
        """Do what waited for the cut, in order; what fails is left, and all that is behind it."""
        waiting, self.waiting = self.waiting, []
        for at, each in enumerate(waiting):
            try:
                each()
            except BaseException:
                self.waiting = waiting[at:] + self.waiting
                raise

    def check_caught_up(self) -> None:
        """Nothing that waited for the cut is left.

        Raises:
            OptionError: Something is: it failed, and values may be missing.
        """
        require(
            self.split is None or not self.waiting,
            what=f"{type(self.model).__name__} is not ready for a step",
            why=f"{len(self.waiting)} of the functions that waited for its cut, such as the"
            " loading of a checkpoint, have not run, since one of them failed",
            mend="Mend what failed there, and start anew",
        )

    def check_size(self, size: int) -> None:
        """A batch that is trained on is as large as was said; later ones may be smaller.

        Args:
            size: Samples of one replica; 0 where that is not known.

        Raises:
            OptionError: It is not.
        """
        wanted = self.settings.options.global_batch_size
        assert self.split is not None
        replicas = self.split.groups.rdp_size
        total = size * replicas
        if wanted and total and (total > wanted or (total < wanted and not self.has_trained)):
            raise OptionError(
                f"global_batch_size is {wanted}",
                f"the batch of this step has {size} samples on each of {replicas} replicas:"
                f" {total}",
                f"Pass global_batch_size={total}"
                + ("" if wanted % replicas else f", or batches of {wanted // replicas}"),
            )
        self.has_trained = True

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
