# SPDX-License-Identifier: Apache-2.0
"""Writes down what a forward pass does while it runs on fakes.

Two things come in: every function of PyTorch that forward functions call (a function mode sees
them), and every module that they call (see patches.py). Inside a unit both are left alone. What
comes out is one `Call` for each; whose the tensors are is in a ledger. What cannot be written down
raises: the module whose forward function runs then becomes a unit, or else the one around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from smdist.modelparallel.torch.capture.errors import CaptureError, Escalation
from smdist.modelparallel.torch.capture.fakes import FakeModel, memory
from smdist.modelparallel.torch.capture.functions import (
    NEEDS_NUMBERS,
    WRITES_SECRETLY,
    objection,
)
from smdist.modelparallel.torch.capture.ledger import Ledger, changed, shares
from smdist.modelparallel.torch.capture.lines import line_of_user
from smdist.modelparallel.torch.capture.objects import carried, is_cache, print_of
from smdist.modelparallel.torch.capture.probe import Probe, ProbeError
from smdist.modelparallel.torch.capture.state import Snapshot, snapshot, snapshots
from smdist.modelparallel.torch.capture.step import (
    Inside,
    Step,
    first_line,
    result_names,
)
from smdist.modelparallel.torch.capture.surroundings import python_draws
from smdist.modelparallel.torch.capture.titles import title_of
from smdist.modelparallel.torch.modes import current_modes
from smdist.modelparallel.torch.program import (
    Argument,
    Call,
    Constant,
    Held,
    Ref,
)
from smdist.modelparallel.torch.tree import Form, flatten, unflatten


class Recorder(TorchFunctionMode):
    """Records one forward pass.

    Args:
        fake: The model on fakes.
        units: Ids of the modules to keep whole.
        names: First names of all modules, by id.
        before: The units as they were, by id.
        probe: Finds out what a unit returns that cannot run on fakes.
    """

    def __init__(
        self,
        fake: FakeModel,
        *,
        units: set[int],
        names: dict[int, str],
        before: dict[int, list[Snapshot]],
        probe: Probe,
    ) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.ledger = Ledger(fake)
        self.base = current_modes()
        self.mode = fake.mode
        self.pending: Escalation | CaptureError | None = None
        self._fake, self._units, self._names, self._probe = fake, units, names, probe
        self._before, self._dice = before, python_draws()
        self._stack: list[Inside] = []
        self._quiet = 0
        self._checkpoints: list[tuple[dict[str, Any], int]] = []
        self._count: Counter[str] = Counter()

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
        with self._silent():
            return self._function(function, args, kwargs)

    def _function(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        leaves, form = flatten((args, kwargs))
        against = objection(function)
        if against:
            self.escalate(against)
        try:
            step = self._step(function, leaves, form)
            self._fake.mode.effects.clear()
            result = function(*args, **kwargs)
        except NEEDS_NUMBERS as error:
            title = title_of(function)
            self.escalate(f"it needs the numbers in a tensor ({title}: {first_line(error)})")
        positions = self._changed(leaves)
        if not positions and not any(isinstance(leaf, Tensor) for leaf in flatten(result)[0]):
            self._count[step.name.partition("@")[0]] -= 1
            return result
        return self._write(step, result, positions)

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
            why = f"{type(error).__name__}: {first_line(error)}"
            raise Escalation(name, why, line_of_user(error), is_error=True) from error
        finally:
            self._stack.pop()
        return result

    def _unit(
        self, name: str, run: Callable[..., Any], module: nn.Module, arguments: tuple[Any, Any]
    ) -> Any:
        leaves, form = flatten(arguments)
        self._check_dice()
        self._check_unit(name, module)
        step = self._step(None, leaves, form, unit=name)
        before = self._prints(leaves)
        is_probed = False
        self._fake.mode.effects.clear()
        try:
            result = run(module, *arguments[0], **arguments[1])
            positions = self._changed(leaves)
        except Exception as error:
            result, positions = self._try(module, step, error)
            is_probed = True
        self._check_arguments(name, arguments, (leaves, form), before)
        self._dice = python_draws()
        self._before[id(module)] = snapshots(module.modules())
        self._check_buffers(module, step, is_probed=is_probed)
        return self._write(step, result, positions, is_probed=is_probed)

    def _check_unit(self, name: str, module: nn.Module) -> None:
        """Whatever a unit holds comes from the user or from the unit itself."""
        before = self._before.setdefault(id(module), snapshots(module.modules()))
        found = next((change for part in before for change in part.differences()), None)
        if found is not None:
            self.escalate(f"it changes {found!r} of {name!r}, which is a module of its own")

    def _check_buffers(self, module: nn.Module, step: Step, *, is_probed: bool) -> None:
        """Buffers that a unit changes are its own: others would read them on other stages."""
        if is_probed or self.ledger.weight_in(self._fake.mode.effects.written) is not None:
            read = self.ledger.claim(module.buffers())
            if read is not None:
                self.escalate(f"it reads {read!r}, which {step.name!r} changes")

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
        if isinstance(leaf, torch.Generator):
            self.escalate("it draws from a generator of its own")
        found = carried(leaf)
        if found:
            self.escalate(f"it passes on a {type(leaf).__name__} that carries a {found}")
        return Constant(leaf)

    def _tensor(self, tensor: Tensor) -> Argument:
        module = self.ledger.stale_since(tensor)
        if module is not None:
            why = "it changes a tensor in place that others are views of, and they are read later"
            self._raise(Escalation(module, why, line_of_user()))
        known = self.ledger.source(tensor)
        if isinstance(known, Held) and self.ledger.is_claimed(tensor, known.name):
            self.escalate(f"it reads {known.name!r}, which one of its modules changes")
        if known is not None:
            return known
        if isinstance(tensor, FakeTensor) or is_functorch_wrapped_tensor(tensor):
            self.escalate("it uses a tensor that was made where capture cannot see it")
        if tensor.requires_grad:
            self._raise(self._outside())
        return Constant(tensor)

    def _write(
        self, step: Step, result: Any, positions: list[int], *, is_probed: bool = False
    ) -> Any:
        """Add the call; return its result as the forward function may use it."""
        effects = self._fake.mode.effects
        is_random = bool(effects.draws) or is_probed
        has_state = self.ledger.weight_in(effects.written) is not None or is_probed
        renewed = self._renew(step, positions)
        leaves, form = flatten(result)
        names = result_names(step.name, leaves)
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
        known = self.ledger.source(leaf)
        if isinstance(known, Ref) and known.value.partition("#")[0] == step.name:
            return known, leaf
        if known is not None or not isinstance(leaf, FakeTensor):
            leaf = self._alias(leaf)
        return self.ledger.publish(leaf, name), leaf

    def _alias(self, leaf: Tensor) -> Tensor:
        """Another tensor of the same memory: what returns its input still makes a new value."""
        with torch.set_grad_enabled(leaf.requires_grad):
            return leaf.view_as(leaf)

    # Changes in place.

    def _changed(self, leaves: list[Any]) -> list[int]:
        return changed(leaves, self._fake.mode.effects.written)

    def _renew(self, step: Step, positions: list[int]) -> dict[int, tuple[str, Tensor]]:
        if step.function is not None:
            self._check_weights(step)
        renewed: dict[int, tuple[str, Tensor]] = {}
        for at in positions:
            leaf = step.leaves[at]
            self._check_change(step, at)
            self.ledger.outdate(leaf, self._stack[-1].name)
            renewed[at] = (f"{step.name}!{at}", leaf)
            self.ledger.publish(leaf, renewed[at][0])
        return renewed

    def _check_weights(self, step: Step) -> None:
        weight = self.ledger.weight_in(self._fake.mode.effects.written)
        if step.function in WRITES_SECRETLY:
            weight = next((s.name for s in step.sources[1:3] if isinstance(s, Held)), weight)
        if weight is not None:
            self.escalate(f"it changes {weight!r} in place")

    def _check_change(self, step: Step, at: int) -> None:
        weight = self.ledger.weight_in({memory(step.leaves[at])})
        if weight is not None:
            self.escalate(f"it lets {step.name!r} change {weight!r} in place")
        if not isinstance(step.sources[at], Ref):
            self.escalate(f"it lets {step.name!r} change a tensor of the user's in place")
        if step.function is None and shares(step.leaves, at):
            self.escalate(f"it passes tensors of one memory to {step.name!r}, which changes them")

    # The rest.

    def _check_dice(self) -> None:
        if python_draws() != self._dice:
            self._dice = python_draws()
            self.escalate("it draws random numbers of Python's or NumPy's, or seeds PyTorch's")

    def _outside(self) -> CaptureError:
        return CaptureError(
            f"a tensor that wants gradients is used at {line_of_user()}",
            "it is no parameter of the model, so no stage would have it",
            "Make it a parameter of the module that uses it",
        )

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
