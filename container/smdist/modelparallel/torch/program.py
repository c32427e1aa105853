# SPDX-License-Identifier: Apache-2.0
"""The forward pass of a model as a straight line of calls: any part of it can run by itself.

    h      = wte(input_ids)                      a unit: the user's module, called whole
    :add   = add(wte, wpe)                       glue: what a forward function computed itself
    h.0    = h.0(:add, attention_mask=None)

A call names what it takes: values of earlier calls, parameters by the model's own names, and
constants. Nothing here holds a copy of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.torch.modes import Modes, entered
from smdist.modelparallel.torch.tree import Form, flatten, paths, unflatten


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the graph, by name."""

    value: str


@dataclass(frozen=True, slots=True)
class Held:
    """A parameter, a buffer or a tensor attribute of the model, by its first name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """Anything else: numbers, None, functions, tensors of the user's own."""

    value: Any


Argument = Ref | Held | Constant
_SCALARS = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """What a value looked like when it was captured."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chance:
    """Which of the forward pass's random numbers a call draws.

    Functions that may draw are numbered in the order in which the whole forward pass calls them,
    so a number does not depend on what is a unit, and on which stage.

    Attributes:
        first: How many such functions run before the call.
        count: How many ran in it when it was captured.
        functions: All that may draw.
    """

    first: int
    count: int
    functions: frozenset[Callable[..., Any]] = field(repr=False)

    def name(self, index: int) -> str:
        """What stands for one of them; more of them than were captured have names of their own."""
        if index < self.count:
            return str(self.first + index)
        return f"{self.first + self.count}+{index - self.count}"


NOTHING_DRAWN: Final = Chance(first=0, count=0, functions=frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One step of the forward pass.

    Attributes:
        name: The node's in the graph.
        module: The unit's name; for glue, the module whose forward function it is in.
        function: What to call; None calls the unit.
        form: Of (positional arguments, keyword arguments).
        arguments: Leaves of `form`.
        result_form: Of what it returns.
        results: Leaves of `result_form`: values, or what is no tensor.
        changed: Leaves of `arguments` that it changes in place, with the name of the new value.
        modes: Where they differ from the modes around the forward pass; None where they do not.
        checkpoint: Settings of `torch.utils.checkpoint` around a unit; None without.
        is_random: Whether it may draw random numbers.
        chance: Which ones.
        has_state: Whether it changes buffers of its own.
        is_probed: Whether its result was found with real numbers, not with fake tensors.
    """

    name: str
    module: str
    function: Callable[..., Any] | None
    form: Form
    arguments: tuple[Argument, ...]
    result_form: Form
    results: tuple[Argument, ...]
    changed: tuple[tuple[int, str], ...] = ()
    modes: Modes | None = None
    checkpoint: Mapping[str, Any] | None = None
    is_random: bool = False
    chance: Chance = NOTHING_DRAWN
    has_state: bool = False
    is_probed: bool = False

    @property
    def is_unit(self) -> bool:
        """Whether a module is called, not a function."""
        return self.function is None

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values that it takes, each once."""
        return tuple(dict.fromkeys(a.value for a in self.arguments if isinstance(a, Ref)))

    @property
    def writes(self) -> tuple[str, ...]:
        """Names of the values that it makes, each once."""
        returned = [result.value for result in self.results if isinstance(result, Ref)]
        return tuple(dict.fromkeys([*returned, *(name for _, name in self.changed)]))

    @property
    def held(self) -> tuple[str, ...]:
        """Names of the model's tensors that it takes."""
        return tuple(dict.fromkeys(a.name for a in self.arguments if isinstance(a, Held)))


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class Program:
    """A whole forward pass.

    Attributes:
        calls: In the order of execution.
        input_form: Of (positional arguments, keyword arguments) of the model.
        inputs: Leaves of `input_form`: values, or constants that must stay as they are.
        output_form: Of what the model returns.
        outputs: Leaves of `output_form`.
        base: The modes around the forward pass when it was captured.
        facts: Of every value, by name.
        aliases: Values that share memory have the same number here.
        chance: Of the whole forward pass.
    """

    calls: tuple[Call, ...]
    input_form: Form
    inputs: tuple[Argument, ...]
    output_form: Form
    outputs: tuple[Argument, ...]
    base: Modes
    facts: Mapping[str, TensorFacts]
    aliases: Mapping[str, int] = field(default_factory=dict)
    chance: Chance = NOTHING_DRAWN

    @cached_property
    def call(self) -> Mapping[str, Call]:
        """Calls by name."""
        return {call.name: call for call in self.calls}

    def bind(self, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
        """The values of the model's inputs, by name.

        Raises:
            OptionError: The inputs are unlike those that were captured: in form, in shape or
                type of a tensor, or in anything that is no tensor.
        """
        leaves, form = flatten(arguments)
        if form != self.input_form:
            raise _unlike("the model's inputs have another form than those it was captured with")
        names = paths(form)
        pairs = list(zip(self.inputs, leaves, names, strict=True))
        raise_all(_unlike(what) for pair in pairs for what in _differences(*pair, facts=self.facts))
        return {source.value: leaf for source, leaf, _ in pairs if isinstance(source, Ref)}

    def assemble(self, values: Mapping[str, Any], held: Callable[[str], Tensor]) -> Any:
        """What the model returns, from its values."""
        return unflatten(self.output_form, [_resolve(o, values, held) for o in self.outputs])


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What calls run with.

    Attributes:
        program: The calls.
        unit: The module of a name.
        held: The parameter, buffer or attribute of a name.
        copies: Values that are copied before a call changes them in place, because somebody
            else still needs them as they are.
        spent: Values that nobody reads after a call, by the call's name: they are let go.
        around: A context for each random call, so that callers may fix its random numbers.
    """

    program: Program
    unit: Callable[[str], nn.Module]
    held: Callable[[str], Tensor]
    copies: frozenset[str] = frozenset()
    spent: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    around: Callable[[Call], AbstractContextManager[None]] = lambda _: nullcontext()

    def run(self, calls: Iterable[Call], values: MutableMapping[str, Any]) -> None:
        """Run calls in order: read from and write to `values`.

        Raises:
            OptionError: A call returned something of another form than when it was captured.
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


def _unlike(what: str) -> OptionError:
    why = "a program is made for one kind of inputs: what depends on them stands in it"
    return OptionError(what, why, "Capture the model again with these")


def _differences(
    source: Argument, leaf: Any, path: str, *, facts: Mapping[str, TensorFacts]
) -> Iterator[str]:
    if isinstance(source, Ref):
        expected = facts[source.value]
        found = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
        if found != (expected.shape, expected.dtype):
            yield f"{source.value!r} is {_text(leaf)}, not {expected.dtype}{expected.shape}"
    elif isinstance(source, Constant) and not _is_same(leaf, source.value):
        yield f"{path.partition('.')[2]!r} is {_text(leaf)}, not {source.value!r}"


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
    return held(source.name) if isinstance(source, Held) else source.value


def _results(call: Call, result: Any, program: Program) -> dict[str, Any]:
    leaves, form = flatten(result)
    if form != call.result_form:
        raise _changed(call, "returned something of another form")
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
        "what it returns depends on the data, and the modules around it were captured without them",
        "Make the module that calls it one unit, or let it return tensors of fixed shape",
    )
