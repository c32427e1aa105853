# SPDX-License-Identifier: Apache-2.0
"""Writes down what a forward pass does while it runs on fakes.

Two things come in: every function of PyTorch that forward functions call (a function mode sees
them), and every module that they call (see patches.py). Inside a unit both are left alone. What
comes out is one `Call` for each. Tensors are known by identity: each belongs to the call that made
it, to the model, or to nobody, which makes it a constant of the user's.

A change in place makes a new value of the same tensor. Other tensors in the same memory are stale
from then on: to read one would need both on the same stage, so the module that made the change
becomes a unit, or else the one around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode

from smdist.modelparallel.torch.capture.errors import CaptureError, Escalation
from smdist.modelparallel.torch.capture.fakes import FakeModel, memory
from smdist.modelparallel.torch.capture.lines import line_of_user
from smdist.modelparallel.torch.capture.objects import carried, is_cache, print_of
from smdist.modelparallel.torch.capture.probe import Probe, ProbeError
from smdist.modelparallel.torch.capture.state import Snapshot, snapshot
from smdist.modelparallel.torch.capture.surroundings import python_draws
from smdist.modelparallel.torch.capture.titles import title_of
from smdist.modelparallel.torch.modes import current_modes
from smdist.modelparallel.torch.program import (
    Argument,
    Call,
    Constant,
    Held,
    Ref,
    TensorFacts,
)
from smdist.modelparallel.torch.tree import Form, flatten, unflatten

_UNSEEN = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
_WRITES_SECRETLY = (
    functional.batch_norm,
    torch.batch_norm,
    functional.instance_norm,
    torch.instance_norm,
)
_HOOKS = (
    "register_hook",
    "register_post_accumulate_grad_hook",
    "retain_grad",
    "backward",
    "set_",
    "share_memory_",
)


@dataclass(slots=True)
class Inside:
    """A container that is running: its name, and how it was before."""

    name: str
    module: nn.Module
    before: Snapshot
    passes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is being called, before it ran."""

    name: str
    module: str
    function: Callable[..., Any] | None
    form: Form
    leaves: list[Any]
    sources: tuple[Argument, ...]
    checkpoint: dict[str, Any] | None = None


class Recorder(TorchFunctionMode):
    """Records one forward pass.

    Args:
        fake: The model on fakes.
        units: Ids of the modules to keep whole.
        names: First names of all modules, by id.
        own: What `own_tensors` says of all modules, by id.
        probe: Finds out what a unit returns that cannot run on fakes.
    """

    def __init__(
        self,
        fake: FakeModel,
        *,
        units: set[int],
        names: dict[int, str],
        own: dict[int, tuple[int, ...]],
        probe: Probe,
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.facts: dict[str, TensorFacts] = {}
        self.aliases: dict[str, int] = {}
        self.base = current_modes()
        self.mode = fake.mode
        self.pending: Escalation | CaptureError | None = None
        self._fake, self._units, self._names, self._probe = fake, units, names, probe
        self._own, self._dice = own, python_draws()
        self._stack: list[Inside] = []
        self._quiet = 0
        self._checkpoints: list[tuple[dict[str, Any], int]] = []
        self._count: Counter[str] = Counter()
        self._sources: dict[int, Argument] = {key: Held(name) for key, name in fake.names.items()}
        self._kept: list[Any] = []
        self._members: dict[int, list[Tensor]] = {}
        self._weights = {memory(tensor): name for name, tensor in fake.fakes.items()}
        self._stale: dict[int, str] = {}

    # What the patches call.

    @property
    def is_quiet(self) -> bool:
        """Whether a unit or a function runs, whose insides are its own."""
        return self._quiet > 0

    def knows(self, module: nn.Module) -> bool:
        """Whether this is a module of the model's."""
        return id(module) in self._names

    def is_passing(self, module: nn.Module, level: type) -> bool:
        """Whether a class's own `__call__` passes on to that of its base class."""
        inside = self._stack[-1] if self._stack else None
        if inside is None or inside.module is not module or not inside.passes:
            return False
        inside.passes = level is not nn.Module
        return True

    def module(
        self, run: Callable[..., Any], module: nn.Module, arguments: Any, *, level: type
    ) -> Any:
        """A forward function calls a module of the model's."""
        name = self._names[id(module)]
        if id(module) in self._units:
            with self._silent():  # our own look at tensors is no glue either
                return self._unit(name, run, module, arguments)
        self._stack.append(Inside(name, module, snapshot(module), level is not nn.Module))
        return self._container(name, run, module, arguments)

    def function(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A forward function calls a function that stays whole."""
        leaves, form = flatten((args, kwargs))
        title = title_of(function)
        if title in _HOOKS:
            self.escalate(f"it calls {title}() on a tensor")
        try:
            step = self._step(function, leaves, form)
            self._fake.mode.effects.clear()
            with self._silent():
                result = function(*args, **kwargs)
        except _UNSEEN as error:
            self.escalate(f"it needs the numbers in a tensor ({title}: {_first_line(error)})")
        changed = self._changed(leaves)
        if not changed and not any(isinstance(leaf, Tensor) for leaf in flatten(result)[0]):
            self._count[step.name.partition("@")[0]] -= 1
            return result
        return self._write(step, result, changed)

    def checkpointed(
        self,
        function: Callable[..., Any],  # noqa: ARG002  it runs by itself
        settings: dict[str, Any],
    ) -> None:
        """A checkpoint starts: units in it get one each, so that their memory is still saved."""
        self._checkpoints.append((settings, len(self.calls)))

    def leave_checkpoint(self) -> None:
        """It ends."""
        _, start = self._checkpoints.pop()
        if not any(call.is_unit for call in self.calls[start:]):
            self.escalate("it puts a checkpoint around operations of its own")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """PyTorch calls this for each of its functions."""
        if self._quiet:
            return func(*args, **(kwargs or {}))
        return self.function(func, args, kwargs or {})

    def escalate(self, reason: str) -> NoReturn:
        """Make the module whose forward function runs now a unit."""
        self._raise(Escalation(self._stack[-1].name, reason, line_of_user()))

    def _raise(self, found: Escalation | CaptureError) -> NoReturn:
        """Also where a forward function swallows it, the run is void."""
        self.pending = self.pending or found
        raise found

    def result(self, output: Any) -> tuple[tuple[Argument, ...], Form]:
        """What the model returned."""
        leaves, form = flatten(output)
        self._stack.append(Inside("", nn.Module(), snapshot(nn.Module())))
        return tuple(self._source(leaf) for leaf in leaves), form

    # Modules.

    def _container(
        self, name: str, run: Callable[..., Any], module: nn.Module, arguments: tuple[Any, Any]
    ) -> Any:
        try:
            result = run(module, *arguments[0], **arguments[1])
            self._check_dice()
            differences = self._stack[-1].before.differences()
            if differences:
                self.escalate(f"it changes its attribute {differences[0]!r}")
        except CaptureError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {_first_line(error)}"
            raise Escalation(name, why, line_of_user(error), is_error=True) from error
        finally:
            self._stack.pop()
        return result

    def _unit(
        self, name: str, run: Callable[..., Any], module: nn.Module, arguments: tuple[Any, Any]
    ) -> Any:
        leaves, form = flatten(arguments)
        self._check_dice()
        if any(own_tensors(part) != self._own.get(id(part)) for part in module.modules()):
            self.escalate(f"it calls {name!r} with other parameters than its own")
        step = self._step(None, leaves, form, unit=name)
        before = self._prints(leaves)
        is_probed = False
        self._fake.mode.effects.clear()
        try:
            result = run(module, *arguments[0], **arguments[1])
            changed = self._changed(leaves)
        except Exception as error:
            result, changed = self._try(module, step, error)
            is_probed = True
        self._check_arguments(name, arguments, (leaves, form), before)
        self._dice = python_draws()
        return self._write(step, result, changed, is_probed=is_probed)

    def _try(self, module: nn.Module, step: Step, error: Exception) -> tuple[Any, list[int]]:
        self._fake.mode.effects.clear()
        try:
            return self._probe.run(module, step.form, step.leaves, error)
        except ProbeError as failed:
            raise Escalation(
                self._stack[-1].name, f"{step.module!r} {failed}", line_of_user(error)
            ) from error

    def _prints(self, leaves: list[Any]) -> list[Any]:
        return [print_of(leaf) for leaf in leaves if not isinstance(leaf, Tensor)]

    def _check_arguments(
        self, name: str, arguments: Any, flat: tuple[list[Any], Form], before: list[Any]
    ) -> None:
        leaves, form = flatten(arguments)
        is_same = form == flat[1] and all(a is b for a, b in zip(leaves, flat[0], strict=True))
        if not is_same or self._prints(leaves) != before:
            self.escalate(f"it passes an object to {name!r} that this changes")

    # Values.

    def _step(
        self,
        function: Callable[..., Any] | None,
        leaves: list[Any],
        form: Form,
        unit: str = "",
    ) -> Step:
        owner = self._stack[-1].name
        title = unit if function is None else f"{owner}:{title_of(function)}"
        self._count[title] += 1
        number = self._count[title]
        return Step(
            name=title if number == 1 else f"{title}@{number}",
            module=unit if function is None else owner,
            function=function,
            form=form,
            leaves=leaves,
            sources=tuple(self._source(leaf) for leaf in leaves),
            checkpoint=self._checkpoints[-1][0] if self._checkpoints and unit else None,
        )

    def _source(self, leaf: Any) -> Argument:
        if isinstance(leaf, Tensor):
            return self._tensor(leaf)
        if is_cache(leaf):
            self._raise(self._cached(leaf))
        found = carried(leaf)
        if found:
            self.escalate(f"it passes on a {type(leaf).__name__} that carries a {found}")
        return Constant(leaf)

    def _tensor(self, tensor: Tensor) -> Argument:
        known = self._sources.get(id(tensor))
        if id(tensor) in self._stale:
            why = "it changes a tensor in place that others are views of, and they are read later"
            self._raise(Escalation(self._stale[id(tensor)], why, line_of_user()))
        if known is not None:
            return known
        if isinstance(tensor, FakeTensor):
            self.escalate("it uses a tensor that was made where capture cannot see it")
        return Constant(tensor)

    def _write(
        self, step: Step, result: Any, changed: list[int], *, is_probed: bool = False
    ) -> Any:
        """Add the call; return its result as the forward function may use it."""
        effects = self._fake.mode.effects
        is_random = bool(effects.draws) or is_probed
        has_state = any(place in self._weights for place in effects.written) or is_probed
        renewed = self._renew(step, changed)
        leaves, form = flatten(result)
        names = _names(step.name, leaves)
        results: list[Argument] = []
        for position, leaf in enumerate(leaves):
            source, leaves[position] = self._result(leaf, names[position], renewed, step)
            results.append(source)
        modes = current_modes()
        self.calls.append(
            Call(
                name=step.name,
                module=step.module,
                function=step.function,
                form=step.form,
                arguments=step.sources,
                result_form=form,
                results=tuple(results),
                changed=tuple((at, name) for at, (name, _) in renewed.items()),
                modes=None if modes == self.base else modes,
                checkpoint=step.checkpoint,
                is_random=is_random,
                has_state=has_state,
                is_probed=is_probed,
            )
        )
        return unflatten(form, leaves)

    def _result(
        self, leaf: Any, name: str, renewed: dict[int, tuple[str, Tensor]], step: Step
    ) -> tuple[Argument, Any]:
        if not isinstance(leaf, Tensor):
            if carried(leaf) or is_cache(leaf):
                self._source(leaf)
            return Constant(leaf), leaf
        for new, tensor in renewed.values():
            if tensor is leaf:
                return Ref(new), leaf
        known = self._sources.get(id(leaf))
        if isinstance(known, Ref) and known.value.partition("#")[0] == step.name:
            return known, leaf
        if known is not None or not isinstance(leaf, FakeTensor):
            leaf = self._alias(leaf)
        return self.publish(leaf, name), leaf

    def _alias(self, leaf: Tensor) -> Tensor:
        """Another tensor of the same memory: what returns its input still makes a new value."""
        with self._silent(), torch.set_grad_enabled(leaf.requires_grad):
            return leaf.view_as(leaf)

    def publish(self, tensor: Tensor, name: str) -> Ref:
        """Know a tensor as a value from now on."""
        self._sources[id(tensor)] = Ref(name)
        self._kept.append(tensor)
        place = memory(tensor)
        self._members.setdefault(place, []).append(tensor)
        self.aliases[name] = place
        self.facts[name] = TensorFacts(
            shape=tuple(tensor.shape),
            stride=tensor.stride(),
            dtype=tensor.dtype,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
        )
        return Ref(name)

    # Changes in place.

    def _changed(self, leaves: list[Any]) -> list[int]:
        written = self._fake.mode.effects.written
        if not written:
            return []
        return [
            at
            for at, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and memory(leaf) in written
        ]

    def _renew(self, step: Step, changed: list[int]) -> dict[int, tuple[str, Tensor]]:
        if step.function is not None:
            self._check_weights(step)
        renewed: dict[int, tuple[str, Tensor]] = {}
        for at in changed:
            leaf = step.leaves[at]
            if not isinstance(step.sources[at], Ref):
                self.escalate(f"it lets {step.name!r} change {self._called(step.sources[at])}")
            self._outdate(leaf, step, changed)
            name = f"{step.name}!{at}"
            self.publish(leaf, name)
            renewed[at] = (name, leaf)
        return renewed

    def _check_weights(self, step: Step) -> None:
        written = self._fake.mode.effects.written
        weights = [self._weights[place] for place in written if place in self._weights]
        if step.function in _WRITES_SECRETLY:
            weights += [s.name for s in step.sources[1:3] if isinstance(s, Held)]
        if weights:
            self.escalate(f"it changes {weights[0]!r} in place")

    def _outdate(self, leaf: Tensor, step: Step, changed: list[int]) -> None:
        if memory(leaf) in self._weights:
            self.escalate(f"it lets {step.name!r} change {self._weights[memory(leaf)]!r} in place")
        others = {id(step.leaves[at]) for at in changed}
        if step.function is None and len(others) > 1:
            self.escalate(f"it passes tensors of one memory to {step.name!r}, which changes them")
        for member in self._members.get(memory(leaf), ()):
            if id(member) not in others:
                self._stale[id(member)] = self._stack[-1].name

    def _called(self, source: Argument) -> str:
        return repr(source.name) if isinstance(source, Held) else "a tensor of the user's in place"

    # The rest.

    def _check_dice(self) -> None:
        if python_draws() != self._dice:
            self._dice = python_draws()
            self.escalate("it draws random numbers of Python's or NumPy's")

    def _cached(self, leaf: Any) -> CaptureError:
        name = self._stack[-1].name
        return CaptureError(
            f"{repr(name) if name else 'the model'} passes a {type(leaf).__name__} from layer to "
            f"layer at {line_of_user()}",
            "each layer writes to it, and layers on other stages would never see that",
            "Pass use_cache=False, or set model.config.use_cache = False",
        )

    @contextmanager
    def _silent(self) -> Iterator[None]:
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1


def own_tensors(module: nn.Module) -> tuple[int, ...]:
    """Ids of a module's parameters, to see whether somebody has put others in their place."""
    return tuple(map(id, module._parameters.values()))


def _names(base: str, leaves: list[Any]) -> list[str]:
    tensors = sum(isinstance(leaf, Tensor) for leaf in leaves)
    return [base if tensors == 1 else f"{base}#{at}" for at in range(len(leaves))]


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
