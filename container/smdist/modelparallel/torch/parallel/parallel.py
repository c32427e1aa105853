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
from smdist.modelparallel.torch.parallel.model_state import ModelState, PartitionedModel
from smdist.modelparallel.torch.parallel.precision import convert, inputs_of, outputs_of
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.parallel.step_function import normal
from smdist.modelparallel.torch.parallel.step_trace import Trace
from smdist.modelparallel.torch.replicas.host_update import HostUpdate
from smdist.modelparallel.torch.replicas.master_weights import MasterWeights
from smdist.modelparallel.torch.session.current_model import current_model, refuse_in_step, register
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.tensor_parallel import TensorPlan


class Parallel(nn.Module):
    """Model whose stages are on several ranks; it is called like the user's model.

    The first step splits the model into stages. Before this step, `Parallel` has all parameters of
    the user's model. Afterwards it has the parameters of this rank's stages, under the same names.

    Args:
        model: Model of the user.
        settings: Options of the session and of `smp.parallelize`.

    Attributes:
        step_number: Number of training steps that have finished; random numbers depend on it.
        seed: Seed of random numbers.
    """

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        super().__init__()
        require(
            isinstance(model, nn.Module) and not isinstance(model, Parallel),
            what=f"the model is of type {type(model).__name__}",
            why="only a torch.nn.Module that is not parallel yet can be split into stages",
            hint="Pass the torch.nn.Module itself",
            about="model",
        )
        self._state = ModelState(model=model, settings=settings, seed=settings.seed)
        convert(model, settings)
        self._session = session.current()
        self.training = model.training
        register(self)
        optimizers.watch(self)

    def __getattr__(self, name: str) -> Any:
        """Return a parameter, buffer or submodule of this module.

        Raises:
            AttributeError: This module has no such attribute. If the user's model has one, the
                error says how to reach it.
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
        """Session of `smp.init` in which this object was made."""
        return self._session

    @property
    def module(self) -> nn.Module:
        """Model of the user.

        Once the model is split into stages, tensors that only other ranks hold have no values.
        """
        return self._state.model

    @property
    def is_cut(self) -> bool:
        """True once the model is split into stages."""
        return self._state.split is not None

    @property
    def is_in_step(self) -> bool:
        """True while the user's code of a microbatch runs in a step."""
        return self._state.microbatch_call is not None

    @property
    def is_sharded(self) -> bool:
        """True if replicas shard parameters or optimizer state, or will do so after the split."""
        return self._state.settings.sharding != "none"

    @property
    def settings(self) -> Settings:
        """Options of the session and of `smp.parallelize`."""
        return self._state.settings

    @property
    def masters(self) -> MasterWeights | None:
        """Master weights of this rank, with fp16=True, or with bf16=True and without sharding.

        Otherwise the result is None; it is None until the model is split into stages, too.
        """
        return self._state.masters

    @property
    def host_update(self) -> HostUpdate | None:
        """Object that runs optimizer steps on the CPU, with offload_optimizer=True.

        The result is None if they run where the parameters are, and until the model is split.
        """
        return self._state.split.replicas.host_update if self._state.split else None

    @property
    def stages(self) -> Mapping[int, StageModule]:
        """Stages of this rank by number; empty until the model is split into stages."""
        return self._state.split.stages if self._state.split else MappingProxyType({})

    @property
    def plan(self) -> Plan:
        """Plan by which the model was split into stages.

        Raises:
            OptionError: The model is not split yet.
        """
        return self._split.plan

    @property
    def tensor_plan(self) -> TensorPlan | None:
        """Plan of tensor parallelism: split modules, and reasons why others stay whole.

        The result is None if tensor_parallel_degree is 1.

        Raises:
            OptionError: The model is not split yet.
        """
        return self._split.tensor_plan

    @property
    def placement(self) -> Placement:
        """Stage of each operation, and the values sent between stages, in the model's latest call.

        Raises:
            OptionError: The model is not split into stages yet.
        """
        return self._split.placement

    @property
    def captured(self) -> Captured:
        """Recorded forward pass of the latest call of the model.

        Raises:
            OptionError: The model is not split into stages yet.
        """
        return self._split.captured

    @property
    def groups(self) -> Groups:
        """Process groups of the model.

        Raises:
            OptionError: The model is not split into stages yet.
        """
        return self._split.groups

    @property
    def skeleton(self) -> nn.Module:
        """Copy of the whole model, with the modules of all ranks; its tensors have no values.

        Raises:
            OptionError: The model is not split into stages yet.
        """
        return self._split.skeleton

    @property
    def step_number(self) -> int:
        """Number of training steps that have finished."""
        return self._state.step_number

    @step_number.setter
    def step_number(self, number: int) -> None:
        self._state.step_number = number

    @property
    def num_passes(self) -> int:
        """Number of training steps that this process has begun, including failed ones."""
        return self._state.passes

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
                f"{type(self._state.model).__name__} is not split into stages yet",
                "the first step splits the model",
                "Run a step first, or pass example= to smp.parallelize",
                kind="too_early",
            )
        return self._state.split

    def when_cut(self, function: Callable[[], None], *, loads: bool = False) -> None:
        """Call a function as soon as the model is split into stages: now, or in the first step.

        Args:
            function: Function that needs the stages.
            loads: True if the function loads all parameters and buffers.
        """
        self._state.when_cut(function, loads=loads)

    def cut_by(self, plan: Plan) -> None:
        """Set the plan by which the first step will split the model into stages.

        Raises:
            OptionError: The model is already split, or has another plan.
        """
        self._state.cut_by(plan)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on one microbatch in a step function, or on a whole batch outside of steps.

        Outside of steps, all ranks of a pipeline must call the model with the same batch.

        Returns:
            Output of the model. In a step function, the call returns only on the rank of the last
            stage. On other ranks, the call ends the step function.

        Raises:
            OptionError: Outside of a step, gradients are enabled and the model has several stages.
        """
        state = self._state
        is_converted = state.settings.converted_dtype is not None
        arguments = normal((args, kwargs), state.model)
        if is_converted:
            arguments = inputs_of(arguments, state.settings)
        if state.microbatch_call is not None:
            output = state.microbatch_call.call(arguments)
        else:
            output = call_outside_step.forward(state, arguments)
        return outputs_of(output, state.settings) if is_converted else output

    def backward(self, tensors: Any, grad_tensors: Any = None) -> None:
        """Start the backward pass of a microbatch, in place of `loss.backward()`.

        Gradients are averaged over replicas, and by default over microbatches.

        Args:
            tensors: Tensor, or tensors, from which the backward pass starts, such as the loss.
            grad_tensors: Gradient of each tensor; None stands for 1, for tensors with one element.

        Raises:
            OptionError: The model has several stages and this is not a step; or a tensor requires
                no gradient; or a tensor with several elements lacks a gradient; or the numbers of
                tensors and gradients differ.
        """
        if self._state.microbatch_call is not None:
            self._state.microbatch_call.backward(tensors, grad_tensors)
        else:
            call_outside_step.backward(self._state, tensors, grad_tensors)

    def train_step(
        self, batch: Any, loss: Callable[..., Any] | None = None, *, targets: Any = None
    ) -> Any:
        """Run the forward and backward passes of one training step, without the optimizer.

        Args:
            batch: Arguments of the model: a tensor, a tuple of positional arguments, or a dict of
                keyword arguments.
            loss: Function `loss(output)` or, with targets, `loss(output, targets)`. None uses
                `output.loss`, or the output itself if it has one element.
            targets: Data for the loss function, split into microbatches like the batch; None if the
                loss needs no targets.

        Returns:
            `StepOutput` with the loss of each microbatch.
        """
        return train_step.train_step(self, self._state, batch, loss, targets)

    def evaluate(
        self, batch: Any, loss: Callable[..., Any] | None = None, *, targets: Any = None
    ) -> Any:
        """Run one forward pass without gradients, in evaluation mode.

        Args:
            batch: Arguments of the model: a tensor, a tuple of positional arguments, or a dict of
                keyword arguments.
            loss: Function `loss(output)` or, with targets, `loss(output, targets)`; None if no loss
                is computed.
            targets: Data for the loss function, split into microbatches like the batch; None if the
                loss needs no targets.

        Returns:
            Mean loss over microbatches, a tensor; without `loss`, the model's output for the batch.
        """
        return train_step.evaluate(self, self._state, batch, loss, targets)

    @contextmanager
    def traced(self) -> Iterator[Trace]:
        """Record the times of all actions and messages in the steps within the block.

        Yields:
            Object with the recorded steps of this rank. Its method `gather()` returns the steps of
            all ranks.

        Raises:
            OptionError: The model is not split into stages yet.
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
        """Return the modules of this rank, under the names of the user's model.

        Args:
            memo: Modules to leave out.
            prefix: Text before each name.
            remove_duplicate: False to return a module once for each of its names.
        """
        memo = set() if memo is None else memo
        for part in self._state.parts:
            yield from part.named_modules(memo, prefix, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Return the direct children of this rank's stages, with their names.

        Until the model is split into stages, these are the children of the user's model.
        """
        for part in self._state.parts:
            yield from part.named_children()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of this rank's parameters.

        Args:
            set_to_none: True to set them to None, False to set them to 0.

        Raises:
            OptionError: A step is running, whose gradients would be lost.
        """
        refuse_in_step("model.zero_grad()")
        super().zero_grad(set_to_none)

    def train(self, mode: bool = True) -> Self:
        """Set the model to training mode, or to evaluation mode if `mode` is False; return self.

        All ranks must call this.
        """
        self.training = mode
        self._state.model.train(mode)
        for part in self._state.parts:
            part.train(mode)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Self:
        """Call a function on every module of this rank; return self."""
        for part in self._state.parts:
            part.apply(fn)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        for part in self._state.parts:
            part._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self._state.split is not None:
            self._state.split.replicas.follow()
        return self

    def state_dict(self, **options: Any) -> Any:
        """Return the parameters and buffers on this rank, by their names in the user's model.

        The result has master weights in place of parameters in 16 bits.

        Args:
            options: Keyword arguments of `torch.nn.Module.state_dict`.
        """
        return self.local_values(**options)

    def local_values(self, **options: Any) -> dict[str, Any]:
        """Return the parameters and buffers on this rank, by their names in the user's model.

        The result does not change if a subclass overrides `state_dict`.

        Args:
            options: Keyword arguments of `torch.nn.Module.state_dict`.
        """
        return self._state.local_values(**options)

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> Any:
        """Load a state dict of the whole model, or of one rank's stages.

        If the model is already split into stages, this rank's values are loaded now. If not, a
        state dict of the whole model is loaded into the user's model now. For a model on the meta
        device, and for a state dict of one rank, values are loaded as soon as the model is split.

        Args:
            state_dict: Parameters and buffers by name; values of other ranks may be missing.
            strict: False to ignore parameters and buffers of this rank that are missing.

        Returns:
            Missing and unexpected names, as from `torch.nn.Module.load_state_dict`. Both are empty,
            unless the values were loaded into the user's model.

        Raises:
            OptionError: A value is missing, or has another shape.
        """
        return load(self._state, state_dict, strict=strict)


def current_parallel() -> Parallel | None:
    """Return the last `Parallel`; None if it was freed, or if its session has ended."""
    model = current_model()
    assert model is None or isinstance(model, Parallel)
    return model


def _inside(model: Parallel) -> str:
    """Return the expression by which a script gets the user's model, such as "model.module"."""
    return "model.get_module()" if hasattr(type(model), "get_module") else "model.module"
