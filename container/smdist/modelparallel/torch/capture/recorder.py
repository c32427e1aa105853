# SPDX-License-Identifier: Apache-2.0
"""Recorder of a forward pass that runs on fake tensors.

The recorder intercepts calls of modules and of PyTorch functions. A unit is a module that is never
split between stages. A unit's call is recorded, but the calls inside a unit are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from smdist.modelparallel.torch.capture.argument_objects import print_of
from smdist.modelparallel.torch.capture.capture_errors import CaptureError, Escalation
from smdist.modelparallel.torch.capture.external_tensors import ExternalTensors
from smdist.modelparallel.torch.capture.module_snapshot import (
    Snapshot,
    python_draws,
    snapshot,
    snapshots,
)
from smdist.modelparallel.torch.capture.program_writer import (
    Inside,
    PendingCall,
    ProgramWriter,
    first_line,
)
from smdist.modelparallel.torch.capture.shape_probe import (
    FailedError,
    Probe,
    ProbeError,
    TooLargeError,
)
from smdist.modelparallel.torch.capture.source_lines import (
    is_compiled_here,
    line_of_change,
    line_of_user,
)
from smdist.modelparallel.torch.capture.unsupported_functions import (
    NEEDS_NUMBERS,
    objection,
    title_of,
)
from smdist.modelparallel.torch.program.program import Argument
from smdist.modelparallel.torch.program.pytree import Form, flatten


class CallRecorder(TorchFunctionMode):
    """Recorder of one forward pass.

    A unit is a module that is recorded as one call, without the operations inside it.

    Args:
        writer: Writer that adds the calls to the program.
        units: Ids of the modules that are units.
        names: Name of each module in the model, by the module's id.
        before: Snapshots from before the pass, of each unit and the modules inside it, by the
            unit's id.
        probe: Object that runs a unit on made-up numbers if the unit cannot run on fake tensors.
        external: Object that detects tensors of other modules, which a unit must not use.
    """

    def __init__(
        self,
        writer: ProgramWriter,
        *,
        units: set[int],
        names: dict[int, str],
        before: dict[int, list[Snapshot]],
        probe: Probe,
        external: ExternalTensors,
    ) -> None:
        super().__init__()
        self._writer, self._units, self._names, self._probe = writer, units, names, probe
        self._before, self._python_rng = before, python_draws()
        self._external = external
        self._quiet = 0
        # containers that ran when a buffer was changed, by the memory of the buffer
        self._changing: dict[int, tuple[Inside, ...]] = {}

    @property
    def is_quiet(self) -> bool:
        """True while a unit or a recorded function runs: calls inside it are not recorded."""
        return self._quiet > 0

    def knows(self, module: nn.Module) -> bool:
        """Return True if a module belongs to the model."""
        return id(module) in self._names

    def is_passing(self, module: nn.Module, level: type) -> bool:
        """Return True if a subclass's `__call__` has called this `__call__` through `super()`.

        The module's call is then already intercepted, and must not be recorded again.

        Args:
            module: Module that is called.
            level: Class that defines the running `__call__`.
        """
        inside = self._writer.stack[-1] if self._writer.stack else None
        if inside is None or inside.module is not module or not inside.passes:
            return False
        inside.passes = level is not nn.Module
        return True

    def module(
        self, run: Callable[..., Any], module: nn.Module, arguments: Any, *, level: type
    ) -> Any:
        """Run a module of the model, and return its result.

        A module that is not split further is recorded as one call.

        Args:
            run: The original `__call__` to execute.
            module: The module.
            arguments: Positional arguments and keyword arguments.
            level: Class of the module, or a base class, that defines `run`.
        """
        name = self._names[id(module)]
        if id(module) in self._units:
            with self._silent():  # the recorder's own operations on tensors are not recorded either
                return self._unit(name, run, module, arguments)
        self._writer.stack.append(Inside(name, module, snapshot(module), level is not nn.Module))
        return self._container(name, run, module, arguments)

    def function(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a function, record it as one call, and return its result.

        A function that neither returns nor changes a tensor is not recorded.
        """
        with self._silent():
            return self._function(function, args, kwargs)

    def _function(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        leaves, form = flatten((args, kwargs))
        against = objection(function)
        if not against and is_compiled_here():
            against = "it runs a function of torch.compile"
        if against:
            self._writer.escalate("unsupported_function", against)
        try:
            step = self._writer.step(function, leaves, form)
            self._writer.effects.clear()
            with self._writer.rng_calls.running(function, self._writer.effects.draws):
                result = function(*args, **kwargs)
        except NEEDS_NUMBERS as error:
            why = f"it needs the values of a tensor ({title_of(function)}: {first_line(error)})"
            self._writer.escalate("needs_values", why)
        positions = self._writer.changed(leaves)
        if not positions and not any(isinstance(leaf, Tensor) for leaf in flatten(result)[0]):
            self._writer.forget(step)
            return result
        return self._writer.write(step, result, positions)

    def checkpointed(
        self,
        function: Callable[..., Any],  # noqa: ARG002  it runs by itself
        settings: dict[str, Any],
    ) -> None:
        """Mark the start of an activation checkpoint in the recording.

        Modules that are recorded inside the checkpoint get its settings.

        Args:
            function: The checkpointed function.
            settings: Keyword arguments of `torch.utils.checkpoint`.

        Returns:
            None, so that the caller runs `function` directly.
        """
        self._writer.checkpoints.append((settings, len(self._writer.calls)))

    def leave_checkpoint(self) -> None:
        """End the innermost activation checkpoint.

        Raises:
            Escalation: No module's call was recorded in the checkpoint, only calls of functions.
        """
        _, start = self._writer.checkpoints.pop()
        if not any(call.is_unit for call in self._writer.calls[start:]):
            why = "it checkpoints operations of its own, with no unit among them"
            self._writer.escalate("no_unit", why)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch; record it unless it runs inside a unit or another function.

        PyTorch calls this method for each call of one of its functions.
        """
        if not self._quiet:
            return self.function(func, args, kwargs or {})
        with self._writer.rng_calls.running(func, self._writer.effects.draws):
            result = func(*args, **(kwargs or {}))
        if func.__name__ != "__get__" or isinstance(result, Tensor):
            self._external.watch(args, kwargs or {})
            self._external.mark(result)
        return result

    def result(self, output: Any) -> tuple[tuple[Argument, ...], Form]:
        """Return the origins of the tensors in the model's output, and the nesting of the output.

        Returns:
            A pair. The first item has an origin for each object in the output: a value, a model
            tensor or a constant. The second item is the nesting of the lists, tuples and dicts
            around the objects.
        """
        leaves, form = flatten(output)
        self._writer.stack.append(Inside("", nn.Module(), snapshot(nn.Module())))
        return tuple(self._writer.source(leaf) for leaf in leaves), form

    def _container(
        self, name: str, run: Callable[..., Any], module: nn.Module, arguments: tuple[Any, Any]
    ) -> Any:
        try:
            result = run(module, *arguments[0], **arguments[1])
            self._check_python_rng()
            differences = self._writer.stack[-1].before.differences()
            if differences:
                line = line_of_change(module, differences[0])
                why, path = (
                    f"it changes its attribute {differences[0]!r}",
                    f"{name}.{differences[0]}",
                )
                self._writer.escalate("changed_attribute", why, line, about=(path.lstrip("."),))
        except CaptureError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            line = line_of_user(error)
            raise Escalation(name, "failed_in_capture", why, line, is_error=True) from error
        finally:
            self._writer.stack.pop()
        return result

    def _unit(
        self, name: str, run: Callable[..., Any], module: nn.Module, arguments: tuple[Any, Any]
    ) -> Any:
        leaves, form = flatten(arguments)
        self._check_python_rng()
        self._check_unit(name, module)
        step = self._writer.step(None, leaves, form, unit=name)
        before = self._prints(leaves)
        is_probed = False
        self._writer.effects.clear()
        self._external.enter(step.name, module, leaves)
        try:
            result = run(module, *arguments[0], **arguments[1])
            positions = self._writer.changed(leaves)
        except Exception as error:
            result, positions = self._try(module, step, error)
            is_probed = True
        if self._external.found:
            why, about = f"{name!r} {self._external.found}", (name, self._external.culprit)
            self._writer.escalate("outside_tensor", why, about=about)
        self._check_arguments(name, arguments, (leaves, form), before)
        self._python_rng = python_draws()
        self._before[id(module)] = snapshots(module.modules())
        has_state = self._check_buffers(module, step, is_probed=is_probed)
        return self._writer.write(step, result, positions, is_probed=is_probed, has_state=has_state)

    def _check_unit(self, name: str, module: nn.Module) -> None:
        """Check that no other module has changed the attributes of a module.

        Args:
            name: Name of the module.
            module: Module that is about to run, and is recorded as one call.

        Raises:
            Escalation: Another module has changed an attribute.
        """
        before = self._before.setdefault(id(module), snapshots(module.modules()))
        found = next((change for part in before for change in part.differences()), None)
        if found is not None:
            why = f"it changes {found!r} of {name!r}, which is another module"
            self._writer.escalate("changed_attribute", why, about=(f"{name}.{found}",))

    def _check_buffers(self, module: nn.Module, step: PendingCall, *, is_probed: bool) -> bool:
        """Return True if a module has changed buffers in its call.

        Args:
            module: Module that is recorded as one call.
            step: Call of the module.
            is_probed: True if the module ran on made-up numbers, since fake tensors have no values.

        Raises:
            Escalation: Another module has read a buffer of this module, or an earlier call has
                changed the same buffer.
        """
        origins = self._writer.origins
        written = self._probe.changed if is_probed else self._writer.effects.written
        changed = {place for place in written if origins.weight_in({place}) is not None}
        if not changed:
            return False
        read = origins.claim(module.buffers())
        if read is not None:
            why = f"it reads {read!r}, which {step.name!r} changes"
            self._writer.escalate("changed_buffer", why, about=(read,))
        self._check_once(step, changed)
        return True

    def _check_once(self, step: PendingCall, changed: set[int]) -> None:
        """Check that a module which changes buffers is called only once.

        If two stages called the module, each stage would change its own copy of the buffers.

        Args:
            step: Call of the module.
            changed: Ids of the storages of the changed buffers.

        Raises:
            Escalation: An earlier call has changed the same buffer.
        """
        now = tuple(self._writer.stack)
        for place in changed:
            before = self._changing.setdefault(place, now)
            if before is now:
                continue
            both = [one for one, other in zip(before, now, strict=False) if one is other]
            name = self._writer.origins.weight_in({place})
            self._writer.fail(
                Escalation(
                    both[-1].name,
                    "repeated_call",
                    f"it calls {step.module!r} more than once, which changes {name!r} each time",
                    line_of_user(),
                    about=(step.module, *([] if name is None else [name])),
                    hint="Use one instance of the module for each call",
                )
            )

    def _try(self, module: nn.Module, step: PendingCall, error: Exception) -> tuple[Any, list[int]]:
        self._writer.effects.clear()
        self._writer.rng_calls.drop()
        try:
            return self._probe.run(module, step.form, step.leaves, error)
        except TooLargeError as large:
            self._writer.fail(self._values_needed(step, error, large))
        except ProbeError as failed:
            why, is_error = f"{step.module!r} {failed}", isinstance(failed, FailedError)
            raise Escalation(
                self._writer.owner,
                failed.kind,
                why,
                line_of_user(error),
                about=(step.module,),
                is_error=is_error,
            ) from error

    def _values_needed(
        self, step: PendingCall, error: Exception, large: TooLargeError
    ) -> CaptureError:
        """Return the error for a unit on the meta device that needs values to run.

        The error names the innermost module that needs them, such as one expert of a mixture.

        Args:
            step: Call of the unit.
            error: Error that the unit raised on fake tensors.
            large: Error of the attempt to run the unit on made-up numbers.
        """
        inside = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
        names = [self._names[id(each)] for each in inside if id(each) in self._names]
        name = names[-1] if names else step.module
        line = line_of_user(error)
        return CaptureError(
            f"{name!r} needs the values of its inputs, at {line}",
            f"there are no values, since the model is on the meta device, and {step.module!r} is "
            f"too large to run on zeros instead ({large})",
            "Pass --measure to the plan command, pass a model with real weights to smp.plan, or "
            "make the layers smaller",
            about=(name, step.module),
            kind=large.kind,
            line=line,
        )

    def _prints(self, leaves: list[Any]) -> list[Any]:
        return [print_of(leaf) for leaf in leaves if not isinstance(leaf, Tensor)]

    def _check_arguments(
        self, name: str, arguments: Any, flat: tuple[list[Any], Form], before: list[Any]
    ) -> None:
        leaves, form = flatten(arguments)
        is_same = form == flat[1] and all(a is b for a, b in zip(leaves, flat[0], strict=True))
        if not is_same or self._prints(leaves) != before:
            why = f"it passes an object to {name!r}, which changes the object"
            self._writer.escalate("changed_object", why, about=(name,))

    def _check_python_rng(self) -> None:
        if python_draws() != self._python_rng:
            self._python_rng = python_draws()
            why = "it draws random numbers from Python or NumPy, or seeds PyTorch's generators"
            self._writer.escalate("random_numbers", why)

    @contextmanager
    def _silent(self) -> Iterator[None]:
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1
