# SPDX-License-Identifier: Apache-2.0
"""A model on several ranks, used as the model itself: `Parallel`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.inside import refuse_inside
from smdist.modelparallel.torch.parallel import active, alone, outside
from smdist.modelparallel.torch.parallel.cut import Split
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.parallel.state import State
from smdist.modelparallel.torch.parallel.tracing import Trace
from smdist.modelparallel.torch.parallel.work import normal
from smdist.modelparallel.torch.stage import StageModule


class Parallel(nn.Module):
    """A model whose stages are on several ranks.

    Until it is cut, in its first step, it is the user's model: all parameters are here. From then
    on it has those of this rank's stages, under the names that they have in the model.

    Attributes:
        step_number: Steps with a backward pass until now: random numbers go by it.
        seed: What they start from.
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__()
        require(
            isinstance(model, nn.Module) and not isinstance(model, Parallel),
            what=f"the model is {type(model).__name__}",
            why="a torch.nn.Module is cut, once",
            mend="Pass the model itself",
        )
        self._state = State(model=model, settings=settings, seed=settings.seed)
        self._session = session.current()
        self.training = model.training
        active.enter(self)
        outside.watch(self)

    def __getattr__(self, name: str) -> Any:
        """What torch keeps; what the user's model has is named where it is.

        Raises:
            AttributeError: There is nothing of that name here.
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
        """What `smp.init` made."""
        return self._session

    @property
    def module(self) -> nn.Module:
        """The user's model; what other ranks hold has no values once it is cut."""
        return self._state.model

    @property
    def is_cut(self) -> bool:
        """Whether it has been cut into stages."""
        return self._state.split is not None

    @property
    def is_sharded(self) -> bool:
        """Whether replicas share its parameters or their state out, or will once it is cut."""
        return self._state.settings.sharding != "none"

    @property
    def stages(self) -> Mapping[int, StageModule]:
        """This rank's stages by number; none before the cut."""
        return self._state.split.stages if self._state.split else MappingProxyType({})

    @property
    def plan(self) -> Plan:
        """What it was cut by."""
        return self._split.plan

    @property
    def placement(self) -> Placement:
        """Where everything runs, for the batch of the last step."""
        return self._split.placement

    @property
    def captured(self) -> Captured:
        """The model as it was taken apart for the batch of the last step."""
        return self._split.captured

    @property
    def groups(self) -> Groups:
        """Who is where."""
        return self._split.groups

    @property
    def skeleton(self) -> nn.Module:
        """The whole model without values."""
        return self._split.skeleton

    @property
    def step_number(self) -> int:
        """Steps with a backward pass until now."""
        return self._state.step_number

    @step_number.setter
    def step_number(self, number: int) -> None:
        self._state.step_number = number

    @property
    def seed(self) -> int:
        """What random numbers start from."""
        return self._state.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._state.seed = seed

    @property
    def _split(self) -> Split:
        if self._state.split is None:
            raise OptionError(
                f"{type(self._state.model).__name__} is not cut yet",
                "that happens in its first step, which has the first batch",
                "Run a step first, or pass example= to smp.parallelize",
            )
        return self._state.split

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function once the model is cut: at once if it is.

        Args:
            loads: Whether it loads all values, so that none are missed where there are none yet.
        """
        if self.is_cut:
            function()
        else:
            self._state.is_loaded |= loads
            self._state.waiting.append(function)

    def cut_by(self, plan: Plan) -> None:
        """Cut the model by this plan in its first step.

        Raises:
            OptionError: It has been cut, or was to be cut by another plan.
        """
        given = self._state.settings.plan
        if self.is_cut or (given is not None and given.basis != plan.basis):
            raise OptionError(
                f"{type(self._state.model).__name__} is to be cut by another plan",
                "it has one already, and stages hold what that says",
                "Load it into a model without a plan, or with the same one",
            )
        self._state.settings = replace(self._state.settings, plan=plan)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model: in a step its microbatch, else one forward pass on all ranks.

        Raises:
            OptionError: Outside of a step gradients are enabled, and there are several stages.
        """
        arguments = normal((args, kwargs), self._state.model)
        if self._state.scene is not None:
            return self._state.scene.call(arguments)
        return alone.forward(self._state, arguments)

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Start the backward pass of a microbatch, in the place of `loss.backward()`.

        Gradients are the mean over microbatches, and over replicas.

        Raises:
            OptionError: Outside of a step there are several stages, or a tensor has no gradient.
        """
        if self._state.scene is not None:
            self._state.scene.backward(tensors, grad_tensors)
        else:
            alone.backward(self._state, tensors, grad_tensors)

    def train_step(
        self, batch: Any, loss: Callable[..., Any] | None = None, *, targets: Any = None
    ) -> Any:
        """Run one step forward and backward; the optimizer is the caller's.

        Args:
            batch: What the model is called with: a tensor, a tuple of positional arguments, or a
                dict of keyword arguments.
            loss: Of what the model returns, and of `targets` where there are any. The default is
                the model's own: its `loss`, or what it returns if that is one number.
            targets: What is cut into microbatches beside the batch.

        Returns:
            A `StepOutput` of the losses.
        """
        from smdist.modelparallel.torch.step.faces import train_step

        return train_step(self, batch, loss, targets)

    def evaluate(
        self, batch: Any, loss: Callable[..., Any] | None = None, *, targets: Any = None
    ) -> Any:
        """Run one forward pass without gradients, in evaluation mode.

        Args:
            batch, loss, targets: As of `train_step`.

        Returns:
            The mean loss; without `loss` what the model returns for the batch.
        """
        from smdist.modelparallel.torch.step.faces import evaluate

        return evaluate(self, batch, loss, targets)

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """Record the steps that run within; `gather()` of it brings all ranks together.

        Raises:
            OptionError: The model is not cut yet.
        """
        split, trace = self._split, Trace.of(self._split)
        before, split.on_event = split.on_event, trace.recorder
        try:
            yield trace
        finally:
            split.on_event = before

    # What a module is made of: the model's before the cut, the stages' after it.

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Modules on this rank, under the model's names."""
        memo = set() if memo is None else memo
        for part in self._parts():
            yield from part.named_modules(memo, prefix, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Of all parts on this rank."""
        for part in self._parts():
            yield from part.named_children()

    def _parts(self) -> list[nn.Module]:
        split = self._state.split
        return [self._state.model] if split is None else list(split.stages.values())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of this rank.

        Raises:
            OptionError: A step runs: those of its earlier microbatches would be gone.
        """
        refuse_inside("model.zero_grad()")
        super().zero_grad(set_to_none)

    def train(self, mode: bool = True) -> Self:
        """Set all stages to training mode, on each rank that calls it: call it on all."""
        self.training = mode
        self._state.model.train(mode)
        for part in self._parts():
            part.train(mode)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Call a function on every module of this rank."""
        for part in self._parts():
            part.apply(fn)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for part in self._parts():
            part._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def state_dict(self, **options: Any) -> Any:
        """What is on this rank, under the model's names; options are those of a module."""
        return self.local_values(**options)

    def local_values(self, **options: Any) -> dict[str, Any]:
        """What is on this rank, whatever `state_dict` of a subclass is."""
        found: dict[str, Any] = options.pop("destination", None) or {}
        for part in self._parts():
            found.update(part.state_dict(**options))
        return found

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load the whole model's, at once or when it is cut."""
        from smdist.modelparallel.torch.parallel.loading import load

        return load(self, state_dict, strict=strict)


def _inside(model: Parallel) -> str:
    """How a script gets at the user's model."""
    return "model.get_module()" if hasattr(type(model), "get_module") else "model.module"
