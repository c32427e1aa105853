# SPDX-License-Identifier: Apache-2.0
"""Stage of a model: the user's own modules under their own names, and their execution.

    model                        stage 0               stage 1
      transformer                  transformer           transformer
        wte, h.0 ... h.5             wte, h.0 ... h.2      h.3 ... h.5
      lm_head                                            lm_head

Features that depend on names or modules work as with the whole model. Examples are `state_dict()`,
sharding of a block, activation checkpoints, compilation of a module, and hooks on a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.program.program import (
    Call,
    ModelTensor,
    Program,
    ProgramInterpreter,
    Ref,
)
from smdist.modelparallel.torch.program.pytree import flatten
from smdist.modelparallel.torch.tensor_splits import (
    SequencePart,
    SequenceSplit,
    own_slice,
    whole_sequences,
)

Around = Callable[[Call], AbstractContextManager[None]]


def _alone(_: Call) -> AbstractContextManager[None]:
    return nullcontext()


class Level(nn.Module):
    """Container of a stage's modules, such as `transformer` in the name "transformer.h.0".

    With such containers, a module has the same name in the stage as in the model.
    """


class StageModule(Level):
    """Module that contains one stage of a model, and runs its calls.

    Args:
        captured: Recorded forward pass of the model.
        placement: Stages of all calls, and values sent between stages.
        stage: Number of this stage, from 0.

    Raises:
        OptionError: A module that changes its buffers is called on two stages.
    """

    def __init__(self, captured: Captured, placement: Placement, stage: int) -> None:
        super().__init__()
        _check_state(captured.program, placement)
        self._stage = stage
        self._route = Route.of(captured.program, placement, stage)
        self._program = captured.program
        self._running: Call | None = None
        for name in self._route.units:
            _put(self, name, captured.model.get_submodule(name))
        for name in self._route.held:
            if not name.startswith(tuple(f"{unit}." for unit in self._route.units)):
                put_tensor(self, name, captured.model)
        self.training = captured.model.training

    @property
    def route(self) -> Route:
        """Calls of the stage, and names of the values that it receives and sends."""
        return self._route

    @property
    def program(self) -> Program:
        """Program of the whole model, of which the stage runs a part."""
        return self._program

    @property
    def running(self) -> Call | None:
        """Call of a module or operation that runs now; None if no call is running.

        After an exception, this is the call that failed. In a backward pass, this is the call of
        the unit (undivided module) whose gradients are computed.
        """
        return self._running

    def rest(self) -> None:
        """Set `running` to None, after the last call of the stage."""
        self._running = None

    def serve(self, captured: Captured, placement: Placement) -> None:
        """Use another recording of the model's forward pass from now on.

        A recording is needed for each batch shape, and for train and eval mode.

        Args:
            captured: New recording of the model's forward pass.
            placement: Stages of all calls in the new recording.

        Raises:
            OptionError: The recording needs modules or parameters that this stage lacks.
        """
        _check_state(captured.program, placement)
        route = Route.of(captured.program, placement, self._stage)
        raise_all(_missing(self, route))
        self._route, self._program = route, captured.program

    def changing(self) -> frozenset[int]:
        """Return the addresses in memory of the buffers that this stage's units change."""
        return frozenset(
            buffer.untyped_storage().data_ptr()
            for call in self._route.calls
            if call.has_state
            for buffer in self.unit(call.module).buffers()
        )

    def unit(self, name: str) -> nn.Module:
        """Return the module that now has this name in the stage."""
        module: nn.Module = self
        for key in name.split("."):
            found = module._modules[key]
            assert found is not None
            module = found
        return module

    def forward(
        self, received: Mapping[str, Tensor], arguments: Any, around: Around = _alone
    ) -> dict[str, Any]:
        """Run the forward pass of the stage.

        Args:
            received: Values that earlier stages sent, by name. All names in `route.receives` are
                required. Of a value in `program.splits`, it is this rank's part.
            arguments: Positional and keyword arguments of the whole model.
            around: Function that returns a context for each call that draws random numbers.

        Returns:
            Values for later stages, by name, in the form of `received`. On the last stage, also
            the model's outputs, which are whole.

        Raises:
            OptionError: The model's arguments, or the result of a module, are not like those in the
                recorded forward pass.
        """
        values: dict[str, Any] = self._program.bind(arguments)
        values.update((name, self._taken(name, tensor)) for name, tensor in received.items())
        self._machine(around).run(self._following(values), values)
        return {name: self._passed(name, values[name]) for name in self._route.keeps}

    def output(self, values: Mapping[str, Any]) -> Any:
        """Return the model's result, from the values that the last stage's `forward` returned."""
        return self._program.assemble(values, self._held)

    def _taken(self, name: str, tensor: Tensor) -> Tensor:
        """Return a received value in the form that the stage's calls take."""
        split = self._program.splits.get(name)
        return SequencePart(tensor, split) if isinstance(split, SequenceSplit) else tensor

    def _passed(self, name: str, value: Any) -> Any:
        """Return a value in the form in which it leaves the stage."""
        split = self._program.splits.get(name)
        if isinstance(split, SequenceSplit) and name not in self._route.outputs:
            return own_slice(value, split)
        return _whole(value)

    def _following(self, values: Mapping[str, Any]) -> Iterator[Call]:
        """Yield the stage's calls in order, and set `running` to each of them.

        Args:
            values: Results of earlier calls, by name. The caller, which runs each yielded call,
                adds its results.
        """
        for call in self._route.calls:
            self._running = call
            yield call
            if call.is_unit:
                self._follow_back(call, values)
        self._running = None

    def _follow_back(self, call: Call, values: Mapping[str, Any]) -> None:
        """Register autograd hooks that set `running` to a unit when the backward pass reaches it.

        Args:
            call: Call of the unit, which has run.
            values: Results of calls, by name.
        """
        for name in call.writes:
            node = getattr(values.get(name), "grad_fn", None)
            if node is not None:
                node.register_prehook(partial(self._enter, call))

    def _enter(self, call: Call, _: Any) -> None:
        self._running = call

    def _machine(self, around: Around) -> ProgramInterpreter:
        return ProgramInterpreter(
            program=self._program,
            unit=self.unit,
            held=self._held,
            copies=self._route.copies,
            spent=self._route.spent,
            around=around,
        )

    def _held(self, name: str) -> Tensor:
        path, _, key = name.rpartition(".")
        tensor = getattr(self.unit(path) if path else self, key)
        assert isinstance(tensor, Tensor)
        return tensor


class Route:
    """Calls of one stage, and names of the values that it receives, sends and frees.

    Attributes:
        calls: Calls in the order of execution.
        receives: Names of values from earlier stages, in the order of the placement's edges.
        sends: Names of values for later stages.
        outputs: On the last stage, names of the values that the model returns.
        units: Names of the modules that the stage calls.
        held: Names of the model's tensors, such as parameters, that the stage's operations between
            modules use.
        copies: Names of values that must be copied before a call changes them in place.
        spent: Values that the stage frees after a call, by the call's name.
    """

    def __init__(self, calls: tuple[Call, ...]) -> None:
        self.calls = calls
        self.receives: tuple[str, ...] = ()
        self.sends: tuple[str, ...] = ()
        self.outputs: tuple[str, ...] = ()
        self.units = tuple(dict.fromkeys(call.module for call in calls if call.is_unit))
        self.held = tuple(dict.fromkeys(name for call in calls for name in call.held))
        self.copies: frozenset[str] = frozenset()
        self.spent: dict[str, tuple[str, ...]] = {}

    @classmethod
    def of(cls, program: Program, placement: Placement, stage: int) -> Route:
        """Return the calls of one stage, and the names of its values.

        Args:
            program: Recorded forward pass of the whole model.
            placement: Stages of all calls, and values sent between stages.
            stage: Number of the stage.
        """
        calls = tuple(call for call in program.calls if stage in placement.stages[call.name])
        route = cls(calls)
        route.receives = tuple(e.value for e in placement.edges if e.target == stage)
        sends = (e.value for e in placement.edges if e.source == stage)
        route.sends = tuple(dict.fromkeys(sends))
        if stage == placement.num_stages - 1:
            route._add_outputs(program)
        route.copies = route._copies(program)
        route.spent = route._spent()
        return route

    @property
    def keeps(self) -> tuple[str, ...]:
        """Names of the values that the stage's forward pass returns."""
        return tuple(dict.fromkeys((*self.sends, *self.outputs)))

    def _spent(self) -> dict[str, tuple[str, ...]]:
        last = {name: call.name for call in self.calls for name in (*call.reads, *call.writes)}
        ends: dict[str, list[str]] = {}
        for name in last.keys() - set(self.keeps):
            ends.setdefault(last[name], []).append(name)
        return {call: tuple(sorted(names)) for call, names in ends.items()}

    def _add_outputs(self, program: Program) -> None:
        values = (output.value for output in program.outputs if isinstance(output, Ref))
        self.outputs = tuple(dict.fromkeys(values))
        held = (output.name for output in program.outputs if isinstance(output, ModelTensor))
        self.held = tuple(dict.fromkeys((*self.held, *held)))

    def _copies(self, program: Program) -> frozenset[str]:
        inputs = [source.value for source in program.inputs if isinstance(source, Ref)]
        shared = {program.aliases[name] for name in (*self.receives, *self.sends, *inputs)}
        return frozenset(name for name, place in program.aliases.items() if place in shared)


def _check_state(program: Program, placement: Placement) -> None:
    """Raise OptionError if a module that changes its buffers, such as BatchNorm, is on two stages.

    The copies on the two stages would have different statistics.
    """
    where: dict[str, set[int]] = {}
    for call in program.calls:
        if call.is_unit and call.has_state:
            where.setdefault(call.module, set()).update(placement.stages[call.name])
    raise_all(
        OptionError(
            f"{module!r} is on stages {' and '.join(map(str, sorted(stages)))}",
            "each call of it changes its buffers, so all its calls have to be on one stage",
            f"Put all calls of {module!r} on one stage",
            about=module,
        )
        for module, stages in where.items()
        if len(stages) > 1
    )


def _missing(stage: StageModule, route: Route) -> Iterator[OptionError]:
    modules = {name for name, _ in stage.named_modules()}
    for name in route.units:
        if name not in modules:
            yield _not_here(f"calls {name!r}", stage, name)
    for name in route.held:
        path, _, key = name.rpartition(".")
        if path not in modules or not hasattr(stage.get_submodule(path), key):
            yield _not_here(f"reads {name!r}", stage, name)


def _not_here(what: str, stage: StageModule, name: str) -> OptionError:
    units = ", ".join(map(repr, stage.route.units))
    return OptionError(
        f"the model now {what}",
        "this stage was created for an earlier forward pass, which called only the modules"
        f" {units} on this stage",
        "Plan with an example and in a mode (train or eval) in which all modules are called",
        about=name,
        kind="missing",
    )


def _put(stage: nn.Module, name: str, module: nn.Module) -> None:
    level, key = _level(stage, name)
    level._modules[key] = module


def _level(stage: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the parent module of a dotted name in the stage, and the last part of the name.

    Missing parents are created.
    """
    *path, key = name.split(".")
    level = stage
    for step in path:
        level = level._modules.setdefault(step, Level())  # type: ignore[assignment]
    return level, key


def put_tensor(stage: nn.Module, name: str, model: nn.Module) -> None:
    """Add a tensor of the model to a stage: as a parameter, buffer or attribute, as in the model.

    Args:
        stage: The stage to change.
        name: Name of the tensor in the model.
        model: The whole model.
    """
    path, _, key = name.rpartition(".")
    source = model.get_submodule(path)
    level, _ = _level(stage, name)
    if key in source._parameters:
        level._parameters[key] = source._parameters[key]
    elif key in source._buffers:
        level.register_buffer(
            key, source._buffers[key], persistent=key not in source._non_persistent_buffers_set
        )
    else:
        level.__dict__[key] = getattr(source, key)


def _whole(value: Any) -> Any:
    """Return a nested value with whole tensors in place of slices of sequences."""
    has_slices = any(isinstance(leaf, SequencePart) for leaf in flatten(value)[0])
    return whole_sequences(value) if has_slices else value
