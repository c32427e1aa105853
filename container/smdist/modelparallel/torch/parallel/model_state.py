# SPDX-License-Identifier: Apache-2.0
"""State of a `Parallel`, apart from what makes it a module.

`StepProgress` counts steps for the lines that rank 0 prints, as DDP's steps are counted elsewhere.
`complete` and `GradientHooks` reduce gradients over replicas, once in a series of backward passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from sagemaker_dist.errors import OptionError, require
from smdist.dataparallel.torch import step_report
from smdist.dataparallel.torch.training_progress import TrainingProgress
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch.executor import Arguments, PassedOn
from smdist.modelparallel.torch.parallel.partitioned_model import PartitionedModel
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.parallel.step_function import MicrobatchCall, StepFunction
from smdist.modelparallel.torch.randomness import RngStream, generators_kept, seed_generators


class StepProgress:
    """Counter of a model's steps; neither activations nor NCCL's transfers are timed."""

    def __init__(self) -> None:
        self._progress = TrainingProgress(counts=True, is_timed=not torch.cuda.is_available())
        self._has_begun = False

    def begin(self, samples: int) -> None:
        """Note that a step begins.

        Args:
            samples: Samples of the step on all replicas; 0 if unknown.
        """
        if not self._has_begun:
            self._has_begun = True
            step_report.enter(self._progress)
        if step_report.is_current(self._progress):
            self._progress.forward(samples or None, is_step=True)


_AROUND: Final = ":feed"  # name for the seed of the user's code, as the executor has it


@dataclass(slots=True, kw_only=True)
class ModelState:
    """Mutable state of a model on several ranks.

    Attributes:
        model: Model of the user; after the cut, tensors that other ranks hold have no values.
        microbatch_call: Microbatch whose user code is running; None between microbatches.
        step_number: Number of finished steps with a backward pass.
        passes: Number of finished or running backward passes; gradients are reduced once a series.
        waiting: Functions to call once the model is cut, in order.
        is_loaded: True if one of these functions loads all values.
        is_returning: True while a backward pass outside of a step runs.
        has_trained: True once a batch of the size in the options was seen.
        forwards: Number of forward passes outside of training steps since the last step, by step
            number and gradient mode.
        steps: Counter of steps for the lines that rank 0 prints.
    """

    model: nn.Module
    settings: Settings
    seed: int = 0
    split: PartitionedModel | None = None
    microbatch_call: MicrobatchCall | None = None
    step_number: int = 0
    passes: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    is_loaded: bool = False
    is_returning: bool = False
    has_trained: bool = False
    forwards: Counter[tuple[int, bool]] = field(default_factory=Counter)
    steps: StepProgress = field(default_factory=StepProgress)

    @contextmanager
    def acting(self, microbatch_call: MicrobatchCall) -> Iterator[None]:
        """Answer the model's calls within the block by this microbatch call."""
        before, self.microbatch_call = self.microbatch_call, microbatch_call
        try:
            yield
        finally:
            self.microbatch_call, microbatch_call.is_open = before, False

    @property
    def parts(self) -> list[nn.Module]:
        """Modules of this rank: the whole model before the cut, its stages after it."""
        return [self.model] if self.split is None else list(self.split.stages.values())

    def local_values(self, **options: Any) -> dict[str, Any]:
        """Return this rank's state dict under the model's names; options are a module's."""
        found: dict[str, Any] = options.pop("destination", None) or {}
        for part in self.parts:
            found.update(part.state_dict(**options))
        return found

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function once the model is cut; at once if it is cut already.

        Args:
            loads: True if the function loads all values, so that missing values are no fault.
        """
        if self.split is not None:
            function()
        else:
            self.is_loaded |= loads
            self.waiting.append(function)

    def cut_by(self, plan: Plan) -> None:
        """Cut the model by this plan in its first step.

        Raises:
            OptionError: The model is already cut, or has another plan.
        """
        given = self.settings.plan
        if self.split is not None or (given is not None and given.basis != plan.basis):
            raise OptionError(
                f"{type(self.model).__name__} is to be cut by another plan",
                "it has one already, and stages hold what that says",
                "Load it into a model without a plan, or with the same one",
            )
        self.settings = replace(self.settings, plan=plan)

    def draws(self, microbatch: int, count: int, repeat: int = 0) -> RngStream:
        """Return the random stream of one of `count` microbatches of this replica."""
        replica = self.split.groups.rdp_rank if self.split is not None else 0
        number = replica * count + microbatch
        return RngStream(seed=self.seed, step=self.step_number, microbatch=number, repeat=repeat)

    def catch_up(self) -> None:
        """Call the functions that waited for the cut; keep a failed one and all after it."""
        waiting, self.waiting = self.waiting, []
        for at, each in enumerate(waiting):
            try:
                each()
            except BaseException:
                self.waiting = waiting[at:] + self.waiting
                raise

    def check_caught_up(self) -> None:
        """Check that no function is left that waited for the cut.

        Raises:
            OptionError: A function is left because one failed, so values may be missing.
        """
        require(
            self.split is None or not self.waiting,
            what=f"{type(self.model).__name__} is not ready for a step",
            why=f"{len(self.waiting)} of the functions that waited for its cut, such as the"
            " loading of a checkpoint, have not run, since one of them failed",
            hint="Fix what failed there, and start again",
        )

    def check_size(self, size: int) -> None:
        """Check that the first training batch has the options' size; later ones may be smaller.

        Args:
            size: Samples of one replica; 0 if unknown.

        Raises:
            OptionError: The batch has another size.
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
                about="global_batch_size",
            )
        self.has_trained = True

    def next_repeat(self) -> int:
        """Count a forward pass outside of training, so that each draws its own random numbers."""
        kind = self.step_number, torch.is_grad_enabled()
        for old in [each for each in self.forwards if each[0] != self.step_number]:
            del self.forwards[old]
        self.forwards[kind] += 1
        return self.forwards[kind] - 1


def probe(
    state: ModelState,
    step_function: StepFunction,
    piece: Arguments,
    use: Callable[[Arguments], Any],
) -> Any:
    """Run the user's code of one microbatch up to the model's call; apply `use` to the arguments.

    Raises:
        OptionError: The function ends without calling the model.
    """
    found: list[Any] = []

    def answer(arguments: Arguments) -> Any:
        found.append(use(arguments))
        raise PassedOn

    seed = state.draws(0, 1).seed_of(_AROUND)
    with state.acting(MicrobatchCall(answer=answer)), generators_kept():
        seed_generators(seed)
        try:
            step_function.function(*piece[0], **piece[1])
        except PassedOn:
            return found[0]
    raise not_called(step_function)


def not_called(step_function: StepFunction) -> OptionError:
    """Return the error for a step function that did not call the model."""
    return OptionError(
        f"{step_function.name} returned without calling the model",
        "a step takes each microbatch through the model once",
        "Call the model in it, or take @smp.step off",
    )


@contextmanager
def complete(state: ModelState, split: PartitionedModel) -> Iterator[bool]:
    """Surround one backward pass of all microbatches; yield True if it is the last of its series.

    Gradients of the passes of one series add up on each replica; the last pass reduces them.
    """
    series = state.settings.passes_per_step
    if state.passes % series == 0:
        split.replicas.begin()
    state.passes += 1
    is_last = state.passes % series == 0
    yield is_last
    if is_last:
        with split.guarded("the sum of gradients"):
            split.replicas.finish()
    state.step_number += 1


class GradientHooks:
    """Hooks of the replicas, which reduce only in the last backward pass of a series."""

    def __init__(self, state: ModelState) -> None:
        self._state = state

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Run before each backward action."""
        assert self._state.split is not None
        self._state.split.replicas.hooks.before_backward(stage, is_last and self._reduces)

    def after_backward(self, stage: int, is_last: bool) -> None:
        """Run after each backward action."""
        assert self._state.split is not None
        self._state.split.replicas.hooks.after_backward(stage, is_last and self._reduces)

    @property
    def _reduces(self) -> bool:
        return self._state.passes % self._state.settings.passes_per_step == 0
