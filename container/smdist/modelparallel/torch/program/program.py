# SPDX-License-Identifier: Apache-2.0
"""Program: the forward pass of a model as a list of calls, any part of which can be run alone.

    wte    = wte(input_ids)                      a unit: a module of the user, recorded as one call
    :add   = add(wte, wpe)                       glue: one operation between units
    h.0    = h.0(:add, attention_mask=None)

The arguments of a call are results of earlier calls, inputs and parameters of the model, and
constants. Parameters are referred to by name, so a program contains no copy of the model.

A forward function may enter `torch.no_grad()`, `torch.inference_mode()` or `torch.autocast` around
some of its operations. So each call records these modes if they differ from those around the whole
forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sagemaker_dist.errors import KeyPath, OptionError, raise_all
from smdist.modelparallel.torch.program.pytree import Form, flatten, paths, unflatten


@dataclass(frozen=True, slots=True, kw_only=True)
class Autocast:
    """Settings of `torch.autocast` for one type of device: on or off, dtype, weight cache."""

    device: str
    is_on: bool
    dtype: torch.dtype
    caches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GradModes:
    """Gradient mode, inference mode and autocast settings at one moment."""

    grad: bool
    inference: bool
    autocasts: tuple[Autocast, ...]


def current_modes() -> GradModes:
    """Return the gradient, inference and autocast modes of this thread now."""
    return GradModes(
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        autocasts=tuple(_autocast(device) for device in _device_types()),
    )


@contextmanager
def entered(modes: GradModes, base: GradModes) -> Iterator[None]:
    """Enter gradient, inference and autocast modes within the block.

    Args:
        modes: Modes within the block.
        base: Modes around the block. Only modes that differ from these are entered.
    """
    with ExitStack() as stack:
        if modes.inference != base.inference:
            stack.enter_context(torch.inference_mode(modes.inference))
        if modes.grad != base.grad:
            stack.enter_context(torch.set_grad_enabled(modes.grad))
        for here, there in zip(modes.autocasts, base.autocasts, strict=True):
            if here != there:
                stack.enter_context(_context(here))
        yield


@cache
def _device_types() -> tuple[str, ...]:
    """Return the types of device whose autocast settings are recorded."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return tuple(dict.fromkeys(["cpu", "cuda", *([] if found is None else [found.type])]))


def _autocast(device: str) -> Autocast:
    return Autocast(
        device=device,
        is_on=torch.is_autocast_enabled(device),
        dtype=torch.get_autocast_dtype(device),
        caches=torch.is_autocast_cache_enabled(),
    )


def _context(autocast: Autocast) -> torch.autocast:
    return torch.autocast(
        autocast.device,
        dtype=autocast.dtype,
        enabled=autocast.is_on,
        cache_enabled=autocast.caches,
    )


@dataclass(frozen=True, slots=True)
class Ref:
    """Reference to an input of the model or a result of an earlier call, by its name."""

    value: str


@dataclass(frozen=True, slots=True)
class ModelTensor:
    """Reference to a parameter, buffer or tensor attribute of the model, by its name.

    If the tensor has several names in the model, the reference has the first one.
    """

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Argument that is the same in every run: a number, None, a function, or a tensor."""

    value: Any


Argument = Ref | ModelTensor | Constant
_SCALARS = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """Shape, strides, type, device and `requires_grad` that a tensor had when it was recorded."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


class ValueSplit(Protocol):
    """Split of a value over ranks, each of which has a part of it."""

    def own(self, whole: Tensor) -> Tensor:
        """Return this rank's part of a whole value, a view of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RngCall:
    """Random functions, such as dropout, inside one recorded call of a module or function.

    Random functions are numbered in the order in which the whole forward pass runs them. So the
    numbers do not depend on how the model is split.

    Attributes:
        first: Number of random functions that run before the call.
        count: Number of random functions that ran in the call when it was recorded.
        functions: All random functions of the model.
    """

    first: int
    count: int
    functions: frozenset[Callable[..., Any]] = field(repr=False)

    def name(self, index: int) -> str:
        """Return a unique name of a random function. The function's seed is made from the name.

        Args:
            index: Number of the random function within the call, from 0.
        """
        if index < self.count:
            return str(self.first + index)
        return f"{self.first + self.count}+{index - self.count}"


NOTHING_DRAWN: Final = RngCall(first=0, count=0, functions=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of the forward pass: of a unit, or of a function between units.

    A unit is a module that is recorded as one call and never split between stages.

    Attributes:
        name: Name of the call's node in the graph.
        module: Name of the unit; for a function, the module whose forward function calls it.
        function: Function to call; None for a unit.
        form: Nesting of (positional arguments, keyword arguments).
        arguments: All arguments, in the order of `form`.
        result_form: Nesting of the result.
        results: All parts of the result, in the order of `result_form`. A part that is no tensor is
            a constant.
        changed: Positions in `arguments` of tensors that the call changes in place, each with the
            name of the changed value.
        modes: Gradient, inference and autocast modes of the call. None if they are the same as at
            the start of the forward pass.
        checkpoint: Settings of `torch.utils.checkpoint` around a unit; None if it has none.
        is_random: True if the call may draw random numbers.
        rng: Random functions that the call runs.
        has_state: True if the call changes buffers of the unit.
        is_probed: True if the unit needs values of tensors, and so was recorded on made-up numbers.
    """

    name: str
    module: str
    function: Callable[..., Any] | None
    form: Form
    arguments: tuple[Argument, ...]
    result_form: Form
    results: tuple[Argument, ...]
    changed: tuple[tuple[int, str], ...] = ()
    modes: GradModes | None = None
    checkpoint: Mapping[str, Any] | None = None
    is_random: bool = False
    rng: RngCall = NOTHING_DRAWN
    has_state: bool = False
    is_probed: bool = False

    @property
    def is_unit(self) -> bool:
        """True if the call runs a module, False if it runs a function."""
        return self.function is None

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the inputs and results of earlier calls that the call reads, each once."""
        return tuple(dict.fromkeys(a.value for a in self.arguments if isinstance(a, Ref)))

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the values that the call returns or changes in place, each once."""
        returned = [result.value for result in self.results if isinstance(result, Ref)]
        return tuple(dict.fromkeys([*returned, *(name for _, name in self.changed)]))

    @property
    def held(self) -> tuple[str, ...]:
        """Names of the model's tensors (parameters, buffers, attributes) that the call reads."""
        return tuple(dict.fromkeys(a.name for a in self.arguments if isinstance(a, ModelTensor)))


@dataclass(frozen=True, kw_only=True)  # cached properties need a __dict__, so no slots
class Program:
    """Recorded forward pass of a whole model.

    Attributes:
        calls: Calls in the order of execution.
        input_form: Nesting of the model's (positional arguments, keyword arguments).
        inputs: All arguments, in the order of `input_form`. Arguments that are no tensors are
            constants, which must be the same in every run.
        output_form: Nesting of the model's output.
        outputs: All parts of the output, in the order of `output_form`.
        base: Gradient, inference and autocast modes at the start of the recorded forward pass.
        facts: Shape, type and device of every value, by its name.
        aliases: Id of each value's memory, by name; values that share memory have the same id.
        rng: Random functions of the whole forward pass.
        splits: Splits of the values of which each rank has a part, by name. Such a value was
            recorded whole.
    """

    calls: tuple[Call, ...]
    input_form: Form
    inputs: tuple[Argument, ...]
    output_form: Form
    outputs: tuple[Argument, ...]
    base: GradModes
    facts: Mapping[str, TensorFacts]
    aliases: Mapping[str, int] = field(default_factory=dict)
    rng: RngCall = NOTHING_DRAWN
    splits: Mapping[str, ValueSplit] = field(default_factory=dict)

    @cached_property
    def part_facts(self) -> Mapping[str, TensorFacts]:
        """Facts of the tensor that this rank has of every value, by the value's name."""
        parts = {name: _part_facts(self.facts[name], split) for name, split in self.splits.items()}
        return {**self.facts, **parts}

    @cached_property
    def call(self) -> Mapping[str, Call]:
        """All calls, by name."""
        return {call.name: call for call in self.calls}

    def bind(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
        """Return the input tensors of one call of the model, by their names in the program.

        Args:
            arguments: Positional arguments and keyword arguments.

        Raises:
            OptionError: The arguments differ from the recorded ones: in their nesting, in the shape
                or type of a tensor, or in a constant.
        """
        leaves, form = flatten(arguments)
        if form != self.input_form:
            raise _unlike("the model's arguments are nested differently than at capture", "nesting")
        names = paths(form)
        pairs = list(zip(self.inputs, leaves, names, strict=True))
        raise_all(error for pair in pairs for error in _differences(*pair, facts=self.facts))
        return {source.value: leaf for source, leaf, _ in pairs if isinstance(source, Ref)}

    def assemble(self, values: Mapping[str, Any], held: Callable[[str], Tensor]) -> Any:
        """Return the model's output, built from the values that the calls computed.

        Args:
            values: Computed tensors, by name.
            held: Function that returns the model's parameter, buffer or tensor attribute of a name.
        """
        return unflatten(self.output_form, [_resolve(o, values, held) for o in self.outputs])


@dataclass(frozen=True, kw_only=True)
class ProgramInterpreter:
    """Interpreter that runs the calls of a program on real tensors.

    Attributes:
        program: Program that has the calls.
        unit: Function that returns the module with a given name.
        held: Function that returns the model's parameter, buffer or tensor attribute of a name.
        copies: Names of values that are copied before a call changes them in place, because their
            old contents are still needed.
        spent: Names of the values that are freed after a call, by the call's name.
        around: Function that returns a context manager for a call. It is used for calls that may
            draw random numbers, for example to set the seed.
    """

    program: Program
    unit: Callable[[str], nn.Module]
    held: Callable[[str], Tensor]
    copies: frozenset[str] = frozenset()
    spent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    around: Callable[[Call], AbstractContextManager[None]] = lambda _: nullcontext()

    def run(self, calls: Iterable[Call], values: MutableMapping[str, Any]) -> None:
        """Run calls in order.

        Args:
            calls: Calls of the program.
            values: Tensors by name: calls read their arguments here and add their results.

        Raises:
            OptionError: A result differs from the recorded one in its nesting, in a shape or in a
                constant.
        """
        for call in calls:
            self._step(call, values)
            for name in self.spent.get(call.name, ()):
                values.pop(name, None)

    def _step(self, call: Call, values: MutableMapping[str, Any]) -> None:
        leaves = [_resolve(argument, values, self.held) for argument in call.arguments]
        for position, _ in call.changed:
            argument = call.arguments[position]
            if isinstance(argument, Ref) and argument.value in self.copies:
                leaves[position] = leaves[position].clone()
        with self._modes(call), self.around(call) if call.is_random else nullcontext():
            args, kwargs = unflatten(call.form, leaves)
            result = self._function(call)(*args, **kwargs)
        values.update(_results(call, result, self.program))
        values.update({name: leaves[position] for position, name in call.changed})

    def _modes(self, call: Call) -> AbstractContextManager[None]:
        return nullcontext() if call.modes is None else entered(call.modes, self.program.base)

    def _function(self, call: Call) -> Callable[..., Any]:
        if call.function is not None:
            return call.function
        module = self.unit(call.module)
        return module if call.checkpoint is None else _checkpointed(module, call.checkpoint)


def _part_facts(facts: TensorFacts, split: ValueSplit) -> TensorFacts:
    whole = torch.empty_strided(facts.shape, facts.stride, device="meta")
    part = split.own(whole).clone()
    return replace(facts, shape=tuple(part.shape), stride=part.stride())


def _unlike(what: str, kind: str, about: str | KeyPath = ()) -> OptionError:
    why = "the forward pass was recorded with other arguments"
    return OptionError(what, why, "Record the model again with these arguments", about, kind)


def _differences(
    source: Argument, leaf: Any, path: str, *, facts: Mapping[str, TensorFacts]
) -> Iterator[OptionError]:
    if isinstance(source, Ref):
        expected = facts[source.value]
        found = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if found != (expected.shape, expected.dtype):
            what = f"{source.value!r} is {_text(leaf)}, not {expected.dtype}{expected.shape}"
            is_shape = found[0] != expected.shape
            yield _unlike(what, "shape" if is_shape else "dtype", source.value)
    elif isinstance(source, Constant) and not _is_same(leaf, source.value):
        name = path.partition(".")[2]
        yield _unlike(f"{name!r} is {_text(leaf)}, not {source.value!r}", "constant", name)


def _is_same(leaf: Any, captured: Any) -> bool:
    if not isinstance(captured, _SCALARS):
        return type(leaf) is type(captured)
    return leaf is captured or (type(leaf) is type(captured) and bool(leaf == captured))


def _text(leaf: Any) -> str:
    return f"{leaf.dtype}{tuple(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)


def _checkpointed(module: nn.Module, settings: Mapping[str, Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(partial(module, **kwargs) if kwargs else module, *args, **settings)

    return run


def _resolve(source: Argument, values: Mapping[str, Any], held: Callable[[str], Tensor]) -> Any:
    if isinstance(source, Ref):
        return values[source.value]
    return held(source.name) if isinstance(source, ModelTensor) else source.value


def _results(call: Call, result: Any, program: Program) -> dict[str, Any]:
    leaves, form = flatten(result)
    if form != call.result_form:
        raise _changed(call, "returned a result that is nested differently than at capture")
    found: dict[str, Any] = {}
    for source, leaf in zip(call.results, leaves, strict=True):
        _check_leaf(call, source, leaf, program)
        if isinstance(source, Ref):
            found[source.value] = leaf
    return found


def _check_leaf(call: Call, source: Argument, leaf: Any, program: Program) -> None:
    if isinstance(source, Constant):
        if isinstance(source.value, (bool, int, float, str)) and leaf != source.value:
            raise _changed(call, f"returned {leaf!r} where it returned {source.value!r} before")
    elif not isinstance(leaf, Tensor):
        raise _changed(call, f"returned {type(leaf).__name__} where it returned a tensor before")
    elif call.is_probed and isinstance(source, Ref):
        expected = program.facts[source.value].shape
        if tuple(leaf.shape) != expected:
            raise _changed(call, f"returned shape {tuple(leaf.shape)}, not {expected}")


def _changed(call: Call, what: str) -> OptionError:
    return OptionError(
        f"{call.module or 'the model'!r} {what}",
        "the result depends on the values of the inputs, but the later calls were recorded for "
        "another result",
        "Return tensors of fixed shapes, or call capture(closed=[...]) with the name of the calling"
        " module",
        about=call.module or (),
        kind="varying_result",
    )
