# SPDX-License-Identifier: Apache-2.0
"""Recording of calls: a program gets each call with its arguments, results and in-place changes.

If a call cannot be recorded, an Escalation is raised. The module whose forward function makes the
call then becomes a unit: a module that is recorded as one call. `PendingCall` describes a call
before it runs. `Inside` describes a module whose forward function is running.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor

from sagemaker_dist.errors import KeyPath
from smdist.modelparallel.torch.capture.argument_objects import carried, is_cache
from smdist.modelparallel.torch.capture.capture_errors import CaptureError, Escalation
from smdist.modelparallel.torch.capture.fake_model import FakeModel, memory
from smdist.modelparallel.torch.capture.module_snapshot import Snapshot
from smdist.modelparallel.torch.capture.rng_calls import RngCalls
from smdist.modelparallel.torch.capture.source_lines import line_of_user
from smdist.modelparallel.torch.capture.tensor_origins import TensorOrigins, changed, shares
from smdist.modelparallel.torch.capture.unsupported_functions import WRITES_SECRETLY, title_of
from smdist.modelparallel.torch.program.program import (
    Argument,
    Call,
    Constant,
    ModelTensor,
    Ref,
    current_modes,
)
from smdist.modelparallel.torch.program.pytree import Form, flatten, unflatten


@dataclass(slots=True)
class Inside:
    """Module whose forward function is running and whose operations are recorded.

    Attributes:
        name: Name of the module in the model; "" for the model itself.
        module: The module.
        before: Snapshot of the module's attributes from before the call.
        passes: True while the module runs a `__call__` that its own class defines, and has not yet
            reached `nn.Module.__call__`. The call that follows is then not recorded a second time.
    """

    name: str
    module: nn.Module
    before: Snapshot
    passes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """Call that has not run yet, of a function or of a module that is recorded as one call.

    Attributes:
        name: Name of the call in the program.
        module: Name of the called module; for a function, the module that calls the function.
        function: Function to call; None for a module.
        form: Nesting of (positional arguments, keyword arguments).
        leaves: Tensors and other arguments of the call, taken out of nested containers.
        sources: Origin of each leaf: a value, a model tensor or a constant.
        checkpoint: Settings of the activation checkpoint around a module's call; None without one.
    """

    name: str
    module: str
    function: Callable[..., Any] | None
    form: Form
    leaves: list[Any]
    sources: tuple[Argument, ...]
    checkpoint: dict[str, Any] | None = None


def result_names(base: str, leaves: list[Any]) -> list[str]:
    """Return a name for each result of a call.

    If exactly one result is a tensor, every result has the call's name. Otherwise the names are
    "base#0", "base#1" and so on.

    Args:
        base: Name of the call.
        leaves: The results, taken out of nested containers.
    """
    tensors = sum(isinstance(leaf, Tensor) for leaf in leaves)
    return [base if tensors == 1 else f"{base}#{at}" for at in range(len(leaves))]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters long."""
    return (str(error).strip().splitlines() or [""])[0][:200].rstrip(".")


class ProgramWriter:
    """Record of the calls of one forward pass.

    Args:
        fake: The model's fake tensors.

    Attributes:
        calls: Calls in the order of execution.
        origins: Origin of each tensor: a value of the program, or a tensor of the model.
        base: Gradient and autocast modes at the start of the forward pass.
        effects: Changes in place and random operations since the last `effects.clear()`.
        stack: Modules whose forward functions are being recorded, outermost first.
        checkpoints: Running activation checkpoints: the settings, and the number of calls recorded
            before the checkpoint.
        pending: The first error that was raised, or None. It is raised again at the end, in case
            the user's forward function has caught it.
        rng_calls: Counter of functions that draw random numbers.
    """

    def __init__(self, fake: FakeModel) -> None:
        self.calls: list[Call] = []
        self.origins = TensorOrigins(fake)
        self.base = current_modes()
        self.effects = fake.mode.effects
        self.stack: list[Inside] = []
        self.checkpoints: list[tuple[dict[str, Any], int]] = []
        self.pending: Escalation | CaptureError | None = None
        self.rng_calls = RngCalls()
        self._count: Counter[str] = Counter()

    @property
    def owner(self) -> str:
        """Name of the innermost module, other than a unit, whose forward function is running."""
        return self.stack[-1].name

    def forget(self, step: PendingCall) -> None:
        """Discard a pending call that is not recorded, since it computes no tensor."""
        self._count[step.name.partition("@")[0]] -= 1

    def escalate(self, kind: str, reason: str, line: str = "", *, about: KeyPath = ()) -> NoReturn:
        """Raise Escalation for the module whose forward function is running.

        The module is then recorded as one call, without the operations inside it.

        Args:
            kind: The obstacle as one word, such as "random_numbers".
            reason: The obstacle, as a clause that begins with "it", such as "it changes 'weight' in
                place".
            line: Line of the user's code; default: the line that is running.
            about: Names of the modules or parameters that are the obstacle.
        """
        line = line or line_of_user()
        self.fail(Escalation(self.owner, kind, reason, line, about=about))

    def fail(self, found: Escalation | CaptureError) -> NoReturn:
        """Raise and store an error. So the run fails even if the user's code catches the error."""
        self.pending = self.pending or found
        raise found

    def step(
        self,
        function: Callable[..., Any] | None,
        leaves: list[Any],
        form: Form,
        unit: str = "",
    ) -> PendingCall:
        """Return a description of a call that has not run yet.

        The call is either of a function, or of a module that is recorded as one call.

        Args:
            function: Function to call; None for a module.
            leaves: Arguments, taken out of nested containers.
            form: Nesting of the arguments; see `flatten`.
            unit: Name of the module to call; "" for a function.
        """
        owner = self.owner
        title = unit if function is None else f"{owner}:{title_of(function)}"
        self._count[title] += 1
        number = self._count[title]
        return PendingCall(
            name=title if number == 1 else f"{title}@{number}",
            module=unit if function is None else owner,
            function=function,
            form=form,
            leaves=leaves,
            sources=tuple(self.source(leaf) for leaf in leaves),
            checkpoint=self.checkpoints[-1][0] if self.checkpoints and unit else None,
        )

    def source(self, leaf: Any) -> Argument:
        """Return the origin of an argument: a value, a model tensor or a constant.

        A value is an input of the model or the result of an earlier call.

        Raises:
            Escalation: The argument cannot be recorded. The module that passes the argument is then
                recorded as one call.
            CaptureError: The argument is a key-value cache, or a tensor from outside the model
                that requires a gradient.
        """
        if isinstance(leaf, Tensor):
            return self._tensor(leaf)
        if is_cache(leaf):
            self.fail(self._cached(leaf))
        if isinstance(leaf, torch.Generator):
            why = "it draws random numbers from a torch.Generator of its own"
            self.escalate("random_numbers", why)
        found = carried(leaf)
        if found:
            why = f"it passes a {type(leaf).__name__} that contains a {found}"
            self.escalate("object_with_tensors", why)
        return Constant(leaf)

    def _tensor(self, tensor: Tensor) -> Argument:
        module = self.origins.stale_since(tensor)
        if module is not None:
            why = "it changes a tensor in place, and views of that tensor are read later"
            self.fail(Escalation(module, "stale_view", why, line_of_user()))
        known = self.origins.source(tensor)
        if isinstance(known, ModelTensor) and self.origins.is_claimed(tensor, known.name):
            why = f"it reads {known.name!r}, which one of its modules changes"
            self.escalate("changed_buffer", why, about=(known.name,))
        if known is not None:
            return known
        if isinstance(tensor, FakeTensor) or is_functorch_wrapped_tensor(tensor):
            why = "it uses a tensor that a function made that capture cannot record"
            self.escalate("unrecorded_tensor", why)
        if tensor.requires_grad:
            self.fail(self._outside())
        return Constant(tensor)

    def write(
        self, step: PendingCall, result: Any, positions: list[int], *,
        is_probed: bool = False, has_state: bool = False,
    ) -> Any:  # fmt: skip
        """Add a call to the program, and return its result to the forward function.

        Args:
            step: The call, which has run.
            result: Return value of the call.
            positions: Positions of the arguments that the call changed in place.
            is_probed: True if the call ran on made-up numbers, since fake tensors have no values.
            has_state: True if the call changed buffers of the called module.

        Returns:
            The result. Tensors that existed before the call may be replaced by views.
        """
        effects = self.effects
        is_random = bool(effects.draws) or is_probed
        self.rng_calls.end_call(step.name)
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
        self, leaf: Any, name: str, renewed: dict[int, tuple[str, Tensor]], step: PendingCall
    ) -> tuple[Argument, Any]:
        if not isinstance(leaf, Tensor):
            if carried(leaf) or is_cache(leaf):
                self.source(leaf)
            return Constant(leaf), leaf
        for new, tensor in renewed.values():
            if tensor is leaf:
                return Ref(new), leaf
        known = self.origins.source(leaf)
        if isinstance(known, Ref) and known.value.partition("#")[0] == step.name:
            return known, leaf
        if known is not None or not isinstance(leaf, FakeTensor):
            leaf = self._alias(leaf)
        return self.origins.publish(leaf, name), leaf

    def _alias(self, leaf: Tensor) -> Tensor:
        """Return a view of a tensor; the view has an id of its own and counts as a new tensor."""
        with torch.set_grad_enabled(leaf.requires_grad):
            return leaf.view_as(leaf)

    def changed(self, leaves: list[Any]) -> list[int]:
        """Return the positions of the tensors in `leaves` that were changed in place.

        Changes since the last `effects.clear()` count. Tensors that share memory are listed once.
        """
        return changed(leaves, self.effects.written)

    def _renew(self, step: PendingCall, positions: list[int]) -> dict[int, tuple[str, Tensor]]:
        if step.function is not None:
            self._check_weights(step)
        renewed: dict[int, tuple[str, Tensor]] = {}
        for at in positions:
            leaf = step.leaves[at]
            self._check_change(step, at)
            self.origins.outdate(leaf, self.owner)
            renewed[at] = (f"{step.name}!{at}", leaf)
            self.origins.publish(leaf, renewed[at][0])
        return renewed

    def _check_weights(self, step: PendingCall) -> None:
        weight = self.origins.weight_in(self.effects.written)
        if step.function in WRITES_SECRETLY:
            weight = next((s.name for s in step.sources[1:3] if isinstance(s, ModelTensor)), weight)
        if weight is not None:
            self.escalate("changed_in_place", f"it changes {weight!r} in place", about=(weight,))

    def _check_change(self, step: PendingCall, at: int) -> None:
        weight = self.origins.weight_in({memory(step.leaves[at])})
        if weight is not None:
            why = f"it lets {step.name!r} change {weight!r} in place"
            self.escalate("changed_in_place", why, about=(weight,))
        if not isinstance(step.sources[at], Ref):
            why = f"it lets {step.name!r} change a tensor from outside the model in place"
            self.escalate("changed_in_place", why)
        if step.function is None and shares(step.leaves, at):
            why = f"it passes tensors of shared memory to {step.name!r}, which changes one"
            self.escalate("shared_memory", why, about=(step.name,))

    def _outside(self) -> CaptureError:
        line = line_of_user()
        return CaptureError(
            f"a tensor that requires a gradient is used at {line}",
            "it is no parameter of the model, so no stage would have it",
            "Make it a parameter of the module that uses it",
            kind="not_a_parameter",
            line=line,
        )

    def _cached(self, leaf: Any) -> CaptureError:
        name, kind, line = self.owner, type(leaf).__name__, line_of_user()
        return CaptureError(
            f"{repr(name) if name else 'the model'} passes a{'n' * (kind[0] in 'AEIOU')} {kind} "
            f"from layer to layer at {line}",
            "each layer writes to it, and layers on other stages would not receive these writes",
            "Pass use_cache=False to the model, or set model.config.use_cache = False",
            about=name or (),
            kind="cache",
            line=line,
        )
