# SPDX-License-Identifier: Apache-2.0
"""One pipeline step on one rank: its forward and backward passes in the order of the schedule.

The user's code around the model is passed as a function, the feed. It runs once for each stage and
microbatch:

    def feed(microbatch, call):
        x, y = batches[microbatch]
        loss = criterion(call(((x,), {})), y)     `call` stands for the model
        return loss.detach(), [(loss / 8, None)]  the result, and where the backward pass starts

`call` runs one stage in place of the model. The last stage returns the model's output. Any other
stage sends its values to later stages and then raises `PassedOn`, which ends the feed. Since each
stage runs inside the feed, a context around the model's call, such as autocast, applies to all
stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.offload import without_memory
from smdist.modelparallel.torch.executor.rank_schedule import RankSchedule
from smdist.modelparallel.torch.executor.split_backward import Rest, Roots, backward_inputs
from smdist.modelparallel.torch.executor.stage_io import StageIO, check_values
from smdist.modelparallel.torch.executor.step_resources import SavedMicrobatch, StepResources
from smdist.modelparallel.torch.randomness import RngStream, seed_generators

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Call = Callable[[Arguments], Any]
Feed = Callable[[int, Call], tuple[Any, Roots]]
_NAME: Final = ":feed"  # name from which the random seed of the user's code is made
_HINT: Final = "Call the model once for each microbatch, and do not catch PassedOn"


class PassedOn(BaseException):
    """Exception that ends the user's code on a rank whose stage is not the last one.

    It is raised in the call of the model, after the stage has run and has sent its values to later
    stages. User code must not catch it.
    """


class UserCodeRun:
    """Run of the user's code for one microbatch and one stage.

    The user's code calls this object in place of the model.

    Args:
        run: Function that runs the stage. It gets the model's arguments, and returns the stage's
            values by name.
        output: Function that builds the model's output from the values of the last stage; None for
            any other stage.

    Attributes:
        values: Values that the stage computed, by name; empty until the stage has run.
    """

    def __init__(
        self,
        run: Callable[[Arguments], dict[str, Any]],
        output: Callable[[Mapping[str, Any]], Any] | None,
    ) -> None:
        self._run, self._output = run, output
        self._calls = 0
        self._error: BaseException | None = None
        self.values: dict[str, Any] = {}

    def __call__(self, arguments: Arguments) -> Any:
        """Run the stage in place of the model; return the model's output if it is the last stage.

        Args:
            arguments: Positional arguments and keyword arguments of the model's call.

        Raises:
            PassedOn: The stage has run, and is not the last one.
            OptionError: The user's code calls the model for the second time in this run.
        """
        self._calls += 1
        if self._calls > 1:
            self._error = _wrong("called the model twice in one microbatch", "called_twice")
            raise self._error
        try:
            self.values = self._run(arguments)
        except BaseException as error:
            self._error = error
            raise
        if self._output is None:
            raise PassedOn
        return self._output(self.values)

    def take(self, feed: Feed, microbatch: int) -> tuple[Any, Roots]:
        """Run the user's code of one microbatch.

        Args:
            feed: Function `feed(microbatch, call)` with the user's code, which calls `call` in
                place of the model.
            microbatch: Number of the microbatch.

        Returns:
            Result of the user's code, and (tensor, gradient) pairs from which the backward pass
            starts. The result is (None, []) if this is not the last stage.

        Raises:
            OptionError: The user's code did not call the model exactly once, returned a wrong type,
                or caught `PassedOn`, the exception that ends the code early.
        """
        is_passed, answer = False, None
        try:
            answer = feed(microbatch, self)
        except PassedOn:
            is_passed = True
        if self._error is not None:
            raise self._error  # the feed may have caught this error
        if not self._calls:
            raise _wrong("never called the model", "not_called")
        if is_passed:
            return None, []
        if self._output is None:
            what = "caught PassedOn, which must end it on every stage but the last"
            raise _wrong(what, "caught_signal")
        return _checked(answer)


def seed(draws: RngStream) -> None:
    """Seed torch's random generators for one run of the user's code.

    The code of a microbatch runs once for each stage, on several ranks. With this seed, all these
    runs draw the same random numbers.

    Args:
        draws: Source of random numbers of the microbatch.
    """
    seed_generators(draws.seed_of(_NAME))


def _checked(answer: Any) -> tuple[Any, Roots]:
    """Check that the user's code returned a result and a list; return both.

    Args:
        answer: Return value of the user's code: a tuple of any result and a list of (tensor,
            gradient) pairs, from which the backward pass starts.

    Raises:
        OptionError: `answer` is not such a tuple.
    """
    is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], list)
    if not is_pair:
        raise OptionError(
            f"the function `feed` returned an object of type {type(answer).__name__}",
            "it has to return a tuple of two items: any result, and a list of (tensor, gradient)"
            " pairs from which the backward pass starts",
            "Return (result, pairs), or (result, []) if there is no backward pass",
            about="feed",
            kind="type",
        )
    result, roots = answer
    return result, roots


def _wrong(what: str, kind: str) -> OptionError:
    """Return the error for user code that does not call the model exactly once.

    Args:
        what: Mistake, such as "never called the model".
        kind: Kind of the mistake as one word, for the error's `kind`.
    """
    return OptionError(
        f"the function `feed` {what}",
        "each call of `feed` runs one microbatch, and has to call the model exactly once",
        _HINT,
        about="feed",
        kind=kind,
    )


class RankStep:
    """One pipeline step on one rank: runs all its actions.

    Args:
        resources: Stages, hooks and counters of the executor.
        rank_schedule: Actions of this rank, in order.
        stage_io: Sender and receiver of values and gradients.
        keeps: True to keep the data of forward passes until the backward passes. False if there
            are no backward passes.

    Attributes:
        results: Result of the user's code for each microbatch, by its number; empty unless the last
            stage is on this rank.
        action: Action that is running; None before the first and after the last action.
    """

    def __init__(
        self,
        resources: StepResources,
        rank_schedule: RankSchedule,
        stage_io: StageIO,
        *,
        keeps: bool,
    ) -> None:
        self._resources, self._rank_schedule, self._stage_io, self._keeps = (
            resources,
            rank_schedule,
            stage_io,
            keeps,
        )
        self._saved: dict[tuple[int, int], SavedMicrobatch] = {}
        self._rests: dict[tuple[int, int], Rest] = {}
        self._changing: dict[int, frozenset[int]] = {}
        self._offload = (
            resources.offload.step(rank_schedule.actions)
            if resources.offload is not None and keeps
            else None
        )
        self.results: dict[int, Any] = {}
        self.action: Action | None = None
        self._last = len(resources.stage_edges.incoming) - 1

    def run(self, feed: Feed, draws: Callable[[int], RngStream]) -> None:
        """Run all actions of this rank, in order.

        Args:
            feed: Function that runs the user's code of one microbatch.
            draws: Function that gets the number of a microbatch, and returns the source of its
                random numbers.
        """
        actions = self._rank_schedule.actions
        for action in actions[:1]:
            self._stage_io.post_receives(action)
        for action, following in zip(actions, [*actions[1:], None], strict=True):
            self.action = action
            self._resources.stages[action.stage].rest()
            if following is not None:
                self._stage_io.post_receives(following)
            if self._offload is not None:
                self._offload.begin_action()
            if action.do is Do.F:
                self._forward(action, feed, draws(action.microbatch))
            else:
                self._backward(action)
            if self._offload is not None:
                self._offload.end_action()
            self._stage_io.release(action)
        self.action = None

    def close(self, *, has_failed: bool) -> None:
        """Free what the step has on the host, and on the device for it.

        Args:
            has_failed: True if the step has raised an error.
        """
        if self._offload is not None:
            self._offload.close(has_failed=has_failed)

    def _forward(self, action: Action, feed: Feed, draws: RngStream) -> None:
        """Run a forward action: receive the stage's inputs, run the user's code, send the results.

        Args:
            action: Forward pass of one stage for one microbatch.
            feed: Function that runs the user's code of one microbatch.
            draws: Source of random numbers of the microbatch.
        """
        begin = perf_counter()
        received = self._stage_io.receive_values(action)
        leaves = self._leaves(action, received)
        start = self._record("recv", action, begin)
        seed(draws)
        user_code = self._user_code_run(action, received, draws)
        with self._saving(action):
            result, roots = user_code.take(feed, action.microbatch)
        if action.stage == self._last:
            self.results[action.microbatch] = result
        if self._keeps:
            self._keep(action, leaves, user_code.values, roots)
        self._record("F", action, start)

    def _saving(self, action: Action) -> AbstractContextManager[None]:
        """Return the context of a forward pass, in which saved activations move to the host."""
        if self._offload is None:
            return nullcontext()
        return self._offload.saving(self._resources.stages[action.stage])

    def _leaves(self, action: Action, received: dict[str, Tensor]) -> dict[str, Tensor]:
        """Let the received values whose gradients will be sent back require a gradient.

        With activation offload, values in `received` are replaced: a leaf of autograd's graph stays
        on the device, so it must not have the value's memory.

        Args:
            action: Forward pass of the stage that received the values.
            received: Values by name.

        Returns:
            Leaves of the graph in which autograd accumulates these gradients, by name.
        """
        leaves: dict[str, Tensor] = {}
        for wire in self._resources.stage_edges.incoming[action.stage]:
            name = wire.edge.value
            if self._keeps and wire.edge.has_gradient and name not in leaves:
                if self._offload is None:
                    leaves[name] = received[name].requires_grad_()
                else:
                    leaves[name], received[name] = without_memory(received[name])
        return leaves

    def _user_code_run(
        self, action: Action, received: dict[str, Tensor], draws: RngStream
    ) -> UserCodeRun:
        """Return an object that runs the user's code of one microbatch for one stage.

        When the user's code calls the model, this object runs the stage instead. It then checks the
        stage's values, and sends them to later stages.

        Args:
            action: Forward pass of the stage.
            received: Values from earlier stages, by name.
            draws: Source of random numbers of the microbatch.
        """
        stage = self._resources.stages[action.stage]

        def run(arguments: Arguments) -> dict[str, Any]:
            if self._offload is not None:
                self._offload.keep(arguments)
            values: dict[str, Any] = stage(received, arguments, draws.around)
            wires = self._resources.stage_edges.outgoing[action.stage]
            check_values(values, wires, stage.program, keeps=self._keeps)
            begin = perf_counter()
            self._stage_io.send_values(action, self._separate_buffers(action.stage, values))
            self._record("send", action, begin)
            return values

        return UserCodeRun(run, stage.output if action.stage == self._last else None)

    def _separate_buffers(self, stage: int, values: dict[str, Any]) -> dict[str, Any]:
        """Copy those values of a stage that are in the memory of a buffer, such as a running mean.

        The stage changes the buffer in each microbatch. Without a copy, this could change a value
        that is still being sent.

        Args:
            stage: Number of the stage.
            values: Values that the stage computed, by name.

        Returns:
            All values by name, copied or not.
        """
        if stage not in self._changing:
            self._changing[stage] = self._resources.stages[stage].changing()
        places = self._changing[stage]
        if not places:
            return values
        return {name: _copied(value, places) for name, value in values.items()}

    def _keep(
        self, action: Action, leaves: dict[str, Tensor], values: dict[str, Any], roots: Roots
    ) -> None:
        """Keep the data of a forward action that the backward pass of its microbatch needs.

        Args:
            action: Forward pass that has run.
            leaves: Leaves for the values from earlier stages that need a gradient, by name.
            values: Values that the stage computed, by name.
            roots: (tensor, gradient) pairs of the user's code from which the backward pass starts.
        """
        bundles = self._resources.stage_edges.gradients_in[action.stage]
        names = {wire.edge.value for bundle in bundles for wire in bundle.wires}
        place = action.stage, action.microbatch
        trained = {name: values[name] for name in names if values[name].requires_grad}
        self._saved[place] = SavedMicrobatch(leaves, _edges(trained), roots)
        self._resources.memory.held.add(1)

    def _backward(self, action: Action) -> None:
        """Run one backward action of a stage, including its messages."""
        begin = perf_counter()
        gradients = self._stage_io.receive_gradients(action) if action.do is not Do.W else {}
        start = self._record("recv", action, begin) if action.do is not Do.W else begin
        hooks, is_last = self._resources.hooks, action in self._rank_schedule.last
        if hooks is not None:
            hooks.before_backward(action.stage, is_last)
        self._differentiate(action, gradients)
        if hooks is not None:
            hooks.after_backward(action.stage, is_last)
        if action.do is not Do.I:
            self._resources.memory.held.add(-1)
        self._record(action.do.value, action, start)

    def _differentiate(self, action: Action, gradients: dict[str, Tensor]) -> None:
        """Compute the gradients of a backward action, and send the gradients of the stage's inputs.

        An action I computes gradients of the stage's inputs, W gradients of the stage's parameters,
        and B both.

        Args:
            action: Backward action (B, I or W) of one stage for one microbatch.
            gradients: Gradients received from later stages, by the names of their values.
        """
        place = action.stage, action.microbatch
        if action.do is Do.W:
            self._rests.pop(place).backward_parameters()
            return
        kept = self._saved.pop(place)
        roots: list[Any] = [root for root in kept.roots if root[0].requires_grad]
        passed_on = kept.passed_on.items()
        roots += [(value, gradients[name]) for name, value in passed_on if name in gradients]
        if action.do is Do.B:
            _backward(roots)
            found = {name: value.grad for name, value in kept.received.items()}
        else:
            given, self._rests[place] = backward_inputs(roots, list(kept.received.values()))
            found = dict(zip(kept.received, given, strict=True))
        begin = perf_counter()
        self._stage_io.send_gradients(action, found)
        self._record("send", action, begin)

    def _record(self, kind: str, action: Action, start: float) -> float:
        """Report an event that ends now to `on_event`; return the present time in seconds.

        If events are reported, wait until the device has run what is queued: the times of events
        are those of the device, and not of the host that queues its work.

        Args:
            kind: Kind of the event, such as "F" or "recv".
            action: Action to which the event belongs.
            start: Time at which the event began, in seconds.
        """
        if self._resources.on_event is not None:
            self._stage_io.wait_for_device()
        end = perf_counter()
        if self._resources.on_event is not None:
            self._resources.on_event(kind, action.stage, action.microbatch, start, end, "")
        return end


def _edges(values: Mapping[str, Tensor]) -> dict[str, GradientEdge]:
    """Return the gradient edge of each tensor, by name. Edges do not keep the tensors in memory."""
    return {name: get_gradient_edge(value) for name, value in values.items()}


def _backward(roots: list[tuple[Tensor | GradientEdge, Tensor | None]]) -> None:
    """Run torch's backward pass from (tensor, gradient) pairs; do nothing if there are none."""
    if roots:
        starts, gradients = zip(*roots, strict=True)
        torch.autograd.backward(starts, gradients)


def _copied(value: Any, places: frozenset[int]) -> Any:
    """Copy a tensor if its memory is listed in `places`; return any other value unchanged.

    Args:
        value: Tensor or any other object.
        places: Memory addresses.
    """
    is_shared = isinstance(value, Tensor) and value.untyped_storage().data_ptr() in places
    return value.clone() if is_shared else value
