# SPDX-License-Identifier: Apache-2.0
"""Model on several ranks that is used as the model itself: `Parallel`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.parallel import call_outside_step, optimizers, train_step
from smdist.modelparallel.torch.parallel.load_state_dict import load
from smdist.modelparallel.torch.parallel.model_state import ModelState, PartitionedModel, Trace
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.parallel.step_function import normal
from smdist.modelparallel.torch.session.current_model import current_model, refuse_in_step, register
from smdist.modelparallel.torch.session.process_groups import Groups


class Parallel(nn.Module):
    """Model whose stages are on several ranks.

    Until the cut, in the first step, it has all parameters of the user's model. Afterwards it has
    those of this rank's stages, under the same names as in the user's model.

    Attributes:
        step_number: Number of finished steps with a backward pass; random numbers depend on it.
        seed: Seed of random numbers.
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__()
        require(
            isinstance(model, nn.Module) and not isinstance(model, Parallel),
            what=f"the model is {type(model).__name__}",
            why="a torch.nn.Module is cut, once",
            hint="Pass the model itself",
        )
        self._state = ModelState(model=model, settings=settings, seed=settings.seed)
        self._session = session.current()
        self.training = model.training
        register(self)
        optimizers.watch(self)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that torch keeps; for one of the user's model, say where it is.

        Raises:
            AttributeError: There is no such attribute here.
        """
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            state = self.__dict__.get("_state")
            if state is None or not hasattr(state.model, name):
                raise
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}, but {type(state.model).__name__} has:"
                f" {_inside(self)}.{name}. What other ranks hold has no values there once it is cut"
            ) from error

    @property
    def session(self) -> session.Session:
        """Session that `smp.init` made."""
        return self._session

    @property
    def module(self) -> nn.Module:
        """Model of the user; after the cut, tensors that other ranks hold have no values."""
        return self._state.model

    @property
    def is_cut(self) -> bool:
        """True once the model is cut into stages."""
        return self._state.split is not None

    @property
    def is_in_step(self) -> bool:
        """True while the user's code of a microbatch runs."""
        return self._state.microbatch_call is not None

    @property
    def is_sharded(self) -> bool:
        """True if replicas share parameters or optimizer state, or will after the cut."""
        return self._state.settings.sharding != "none"

    @property
    def stages(self) -> Mapping[int, StageModule]:
        """Stages of this rank by number; none before the cut."""
        return self._state.split.stages if self._state.split else MappingProxyType({})

    @property
    def plan(self) -> Plan:
        """Plan that the model was cut by."""
        return self._split.plan

    @property
    def placement(self) -> Placement:
        """Placement of units and values, for the batch of the last step."""
        return self._split.placement

    @property
    def captured(self) -> Captured:
        """Capture of the model for the batch of the last step."""
        return self._split.captured

    @property
    def groups(self) -> Groups:
        """Process groups of the model."""
        return self._split.groups

    @property
    def skeleton(self) -> nn.Module:
        """Whole model without values."""
        return self._split.skeleton

    @property
    def step_number(self) -> int:
        """Number of finished steps with a backward pass."""
        return self._state.step_number

    @step_number.setter
    def step_number(self, number: int) -> None:
        self._state.step_number = number

    @property
    def seed(self) -> int:
        """Seed of random numbers."""
        return self._state.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._state.seed = seed

    @property
    def _split(self) -> PartitionedModel:
        if self._state.split is None:
            raise OptionError(
                f"{type(self._state.model).__name__} is not cut yet",
                "that happens in its first step, which has the first batch",
                "Run a step first, or pass example= to smp.parallelize",
            )
        return self._state.split

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function once the model is cut; at once if it is cut already.

        Args:
            loads: True if the function loads all values, so that missing values are no fault.
        """
        self._state.when_cut(function, loads=loads)

    def cut_by(self, plan: Plan) -> None:
        """Cut the model by this plan in its first step.

        Raises:
            OptionError: The model is already cut, or has another plan.
        """
        self._state.cut_by(plan)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model: in a step one microbatch, outside of one a forward pass on all ranks.

        Raises:
            OptionError: Outside of a step, gradients are enabled and there are several stages.
        """
        arguments = normal((args, kwargs), self._state.model)
        if self._state.microbatch_call is not None:
            return self._state.microbatch_call.call(arguments)
        return call_outside_step.forward(self._state, arguments)

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Start the backward pass of a microbatch, in place of `loss.backward()`.

        Gradients are the mean over microbatches, and over replicas.

        Raises:
            OptionError: Outside of a step there are several stages, or a tensor has no gradient.
        """
        if self._state.microbatch_call is not None:
            self._state.microbatch_call.backward(tensors, grad_tensors)
        else:
            call_outside_step.backward(self._state, tensors, grad_tensors)

    def train_step(
        self, batch: Any, loss: Callable[..., Any] | None = None, *, targets: Any = None
    ) -> Any:
        """Run one step forward and backward, without the optimizer.

        Args:
            batch: Arguments of the model: a tensor, a tuple of positional arguments, or a dict of
                keyword arguments.
            loss: Function of the model's output, and of `targets` if they are given. The default is
                the model's own loss: the output's `loss`, or the output if it is one number.
            targets: Data that is cut into microbatches beside the batch.

        Returns:
            A `StepOutput` of the losses.
        """
        return train_step.train_step(self, self._state, batch, loss, targets)

    def evaluate(
        self, batch: Any, loss: Callable[..., Any] | None = None, *, targets: Any = None
    ) -> Any:
        """Run one forward pass without gradients, in evaluation mode.

        Args:
            batch, loss, targets: See `train_step`.

        Returns:
            The mean loss; without `loss`, the model's output for the batch.
        """
        return train_step.evaluate(self, self._state, batch, loss, targets)

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """Record the steps within the block; `gather()` of the trace collects it from all ranks.

        Raises:
            OptionError: The model is not cut yet.
        """
        split, trace = self._split, Trace.of(self._split)
        before, split.on_event = split.on_event, trace.recorder
        try:
            yield trace
        finally:
            split.on_event = before

    # Module interface: of the whole model before the cut, of this rank's stages after it.

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Return the modules of this rank, under the model's names."""
        memo = set() if memo is None else memo
        for part in self._state.parts:
            yield from part.named_modules(memo, prefix, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Return the direct children of all parts on this rank."""
        for part in self._state.parts:
            yield from part.named_children()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of this rank.

        Raises:
            OptionError: A step runs, and gradients of its earlier microbatches would be lost.
        """
        refuse_in_step("model.zero_grad()")
        super().zero_grad(set_to_none)

    def train(self, mode: bool = True) -> Self:
        """Set all stages of this rank to training or evaluation mode; call it on all ranks."""
        self.training = mode
        self._state.model.train(mode)
        for part in self._state.parts:
            part.train(mode)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Call a function on every module of this rank."""
        for part in self._state.parts:
            part.apply(fn)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for part in self._state.parts:
            part._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def state_dict(self, **options: Any) -> Any:
        """Return this rank's values under the model's names; options are a module's."""
        return self.local_values(**options)

    def local_values(self, **options: Any) -> dict[str, Any]:
        """Return the values of this rank, even if a subclass overrides `state_dict`."""
        return self._state.local_values(**options)

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load a state dict of the whole model, at once or when the model is cut."""
        return load(self._state, state_dict, strict=strict)


def current_parallel() -> Parallel | None:
    """Return the model that was made last, if it still lives and its session still runs."""
    model = current_model()
    assert model is None or isinstance(model, Parallel)
    return model


def _inside(model: Parallel) -> str:
    """Return the expression by which a script reaches the user's model."""
    return "model.get_module()" if hasattr(type(model), "get_module") else "model.module"
