# SPDX-License-Identifier: Apache-2.0
"""Class `Parallel`: a model whose stages are on several ranks, used like the model itself."""

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

    The first step cuts the model into stages. Before it, `Parallel` has all parameters of the
    user's model; afterwards it has those of this rank's stages, under the same names.

    Args:
        model: Model of the user.
        settings: Options of the session and of `smp.parallelize`.

    Attributes:
        step_number: Number of finished steps with a backward pass; random numbers depend on it.
        seed: Seed of random numbers.
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__()
        require(
            isinstance(model, nn.Module) and not isinstance(model, Parallel),
            what=f"the model is of type {type(model).__name__}",
            why="only a torch.nn.Module that is not parallel yet can be cut into stages",
            hint="Pass the torch.nn.Module itself",
            about="model",
        )
        self._state = ModelState(model=model, settings=settings, seed=settings.seed)
        self._session = session.current()
        self.training = model.training
        register(self)
        optimizers.watch(self)

    def __getattr__(self, name: str) -> Any:
        """Return a parameter, buffer or submodule of this module.

        Raises:
            AttributeError: There is none; the error names the user's model if that has it.
        """
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            state = self.__dict__.get("_state")
            if state is None or not hasattr(state.model, name):
                raise
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}, but {type(state.model).__name__}"
                f" has one: use {_inside(self)}.{name}. After the first step, parameters there have"
                " values only if their stage is on this rank"
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
                f"{type(self._state.model).__name__} is not cut into stages yet",
                "its first step cuts it, since that needs a batch",
                "Run a step first, or pass example= to smp.parallelize",
            )
        return self._state.split

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function once the model is cut; at once if it is cut already.

        Args:
            loads: True if the function loads all values, so that the cut may leave values unset.
        """
        self._state.when_cut(function, loads=loads)

    def cut_by(self, plan: Plan) -> None:
        """Cut the model by this plan in its first step.

        Raises:
            OptionError: The model is already cut, or has another plan.
        """
        self._state.cut_by(plan)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model: one microbatch in a step, or a whole batch on all ranks outside of steps.

        Raises:
            OptionError: Outside of a step, gradients are enabled and there are several stages.
        """
        arguments = normal((args, kwargs), self._state.model)
        if self._state.microbatch_call is not None:
            return self._state.microbatch_call.call(arguments)
        return call_outside_step.forward(self._state, arguments)

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Start the backward pass of a microbatch, in place of `loss.backward()`.

        Gradients are averaged over microbatches and over replicas.

        Args:
            tensors: Tensor, or tensors, from which the backward pass starts, such as the loss.
            grad_tensors: Gradient of each tensor; None for tensors with one element.

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
            loss: Function that returns the loss from the model's output, and from `targets` if they
                are given. By default the loss is `output.loss`, or an output of one number.
            targets: Data that is cut into microbatches like the batch; None for none.

        Returns:
            `StepOutput` with the loss of each microbatch.
        """
        return train_step.train_step(self, self._state, batch, loss, targets)

    def evaluate(
        self, batch: Any, loss: Callable[..., Any] | None = None, *, targets: Any = None
    ) -> Any:
        """Run one forward pass without gradients, in evaluation mode.

        Args:
            batch, loss, targets: See `train_step`; without `loss` no loss is computed.

        Returns:
            Mean loss over microbatches, a tensor; without `loss`, the model's output for the batch.
        """
        return train_step.evaluate(self, self._state, batch, loss, targets)

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """Record the steps within the block.

        Yields:
            Trace of this rank; its `gather()` returns the records of all ranks.

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
        """Return the modules of this rank, under the names of the user's model."""
        memo = set() if memo is None else memo
        for part in self._state.parts:
            yield from part.named_modules(memo, prefix, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Return the direct children of this rank's stages; before the cut those of the model."""
        for part in self._state.parts:
            yield from part.named_children()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of this rank.

        Raises:
            OptionError: A step is running, whose gradients would be lost.
        """
        refuse_in_step("model.zero_grad()")
        super().zero_grad(set_to_none)

    def train(self, mode: bool = True) -> Self:
        """Set the model to training or evaluation mode; call it on all ranks."""
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
        """Return the parameters and buffers of this rank, under the names of the user's model.

        Args:
            options: Options of `torch.nn.Module.state_dict`.
        """
        return self.local_values(**options)

    def local_values(self, **options: Any) -> dict[str, Any]:
        """Return what `Parallel.state_dict` does, even if a subclass overrides that."""
        return self._state.local_values(**options)

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load a state dict of the whole model: at once, or when the model is cut.

        Args:
            state_dict: Values by name; it may lack those of other ranks.
            strict: False ignores names of this rank that are missing.

        Raises:
            OptionError: A value is missing, or has another shape.
        """
        return load(self._state, state_dict, strict=strict)


def current_parallel() -> Parallel | None:
    """Return the latest `Parallel` of this process; None if it was freed or its session ended."""
    model = current_model()
    assert model is None or isinstance(model, Parallel)
    return model


def _inside(model: Parallel) -> str:
    """Return the expression by which a script reaches the user's model."""
    return "model.get_module()" if hasattr(type(model), "get_module") else "model.module"
