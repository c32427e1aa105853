# SPDX-License-Identifier: Apache-2.0
"""One step of one rank: its actions in order, and the data kept from forward to backward passes.

The user's code around the model, the feed, runs once for each stage and microbatch:

    def feed(microbatch, call):
        x, y = batches[microbatch]
        loss = criterion(call(((x,), {})), y)     call() returns on the last stage only
        return loss.detach(), [(loss / 8, None)]

On the other stages `call` runs the stage, sends its values, and raises `PassedOn`. A context around
the model's call, such as autocast, therefore surrounds each of its stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.p2p import MemoryCounter
from smdist.modelparallel.torch.executor.rank_schedule import RankSchedule
from smdist.modelparallel.torch.executor.split_backward import Rest, Roots, backward_inputs
from smdist.modelparallel.torch.executor.stage_io import StageEdges, StageIO, check_values
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.randomness import RngStream, seed_generators

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Call = Callable[[Arguments], Any]
Feed = Callable[[int, Call], tuple[Any, Roots]]
_NAME: Final = ":feed"  # name from which the random seed of the user's code is made
_HINT: Final = "Call the model once for each microbatch, and do not catch PassedOn"


class PassedOn(BaseException):
    """Signal that this rank's stage has run; later stages continue. User code must not catch it."""


class UserCodeRun:
    """One run of the user's code (the feed), in which the model's call runs one stage.

    Args:
        run: Function that runs the stage: from the model's arguments to the stage's values by name.
        output: Function from these values to the model's result; None if other stages follow.

    Attributes:
        values: Values of the stage by name, once it has run.
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
        """Run the stage in place of the model."""
        self._calls += 1
        if self._calls > 1:
            self._error = _wrong("called the model twice in one microbatch")
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
        """Run the feed for a microbatch.

        Returns:
            Result of the feed, and the tensors with gradients where the backward pass starts;
            (None, []) on a stage that is not the last, where `PassedOn` ends the feed.

        Raises:
            OptionError: The feed called the model twice or never, or caught `PassedOn`.
        """
        is_passed, answer = False, None
        try:
            answer = feed(microbatch, self)
        except PassedOn:
            is_passed = True
        if self._error is not None:
            raise self._error  # the feed may have caught this error
        if not self._calls:
            raise _wrong("never called the model")
        if is_passed:
            return None, []
        if self._output is None:
            raise _wrong("caught PassedOn, which must end it on every stage but the last")
        return _checked(answer)


def seed(draws: RngStream) -> None:
    """Seed torch's random generators for one run of the user's code.

    The code runs once for each stage, on several ranks, and draws the same random numbers in all
    runs of a microbatch.
    """
    seed_generators(draws.seed_of(_NAME))


def _checked(answer: Any) -> tuple[Any, Roots]:
    """Return what the feed returned, after a check that it is a result and a list of roots."""
    is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], list)
    if not is_pair:
        raise OptionError(
            f"the feed returned {type(answer).__name__}",
            "a feed returns its result, and a list of (tensor, gradient) from which the backward"
            " pass starts",
            "Return such a pair, with an empty list if there is no backward pass",
        )
    result, roots = answer
    return result, roots


def _wrong(what: str) -> OptionError:
    """Return the error for a feed that uses the model's call wrongly."""
    return OptionError(f"the feed {what}", "a feed takes one microbatch through the model", _HINT)


OnEvent = Callable[[str, int, int, float, float, str], None]


class StageHooks(Protocol):
    """Functions called before and after each backward action of a stage: B, I and W.

    `is_last` is True for the last backward action of the stage in a step.
    """

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Handle the start of a backward action."""

    def after_backward(self, stage: int, is_last: bool) -> None:
        """Handle the end of a backward action, after it has sent the gradients of its inputs."""


@dataclass(frozen=True, slots=True)
class SavedMicrobatch:
    """Data of one microbatch on one stage, kept from the forward to the backward pass.

    Attributes:
        received: Received values by name, as leaves of the autograd graph.
        passed_on: Sent values by name, for which gradients will be received. If the backward pass
            is not split, these are their gradient edges, so that their memory is freed.
        roots: Tensors of the user's code with their gradients, where the backward pass starts.
    """

    received: Mapping[str, Tensor]
    passed_on: Mapping[str, Tensor | GradientEdge]
    roots: Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResources:
    """Objects of an executor that its steps share; see `Executor` for each."""

    stages: Mapping[int, StageModule]
    stage_edges: StageEdges
    memory: MemoryCounter
    hooks: StageHooks | None
    on_event: OnEvent | None


class RankStep:
    """All actions of one rank in one step.

    Args:
        resources: Stages, edges, counters and hooks of the executor.
        rank_schedule: Actions of this rank.
        stage_io: Messages of this step.
        keeps: True if backward passes follow, so that their data must be kept.

    Attributes:
        results: Results of the user's code by microbatch, on the rank of the last stage.
        action: Action that runs now; None outside of actions.
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
        self.results: dict[int, Any] = {}
        self.action: Action | None = None
        self._last = len(resources.stage_edges.incoming) - 1

    def run(self, feed: Feed, draws: Callable[[int], RngStream]) -> None:
        """Run all actions in order.

        Args:
            feed: User's code of one microbatch.
            draws: Function from the number of a microbatch to its random stream.
        """
        actions = self._rank_schedule.actions
        for action in actions[:1]:
            self._stage_io.post_receives(action)
        for action, following in zip(actions, [*actions[1:], None], strict=True):
            self.action = action
            self._resources.stages[action.stage].rest()
            if following is not None:
                self._stage_io.post_receives(following)
            if action.do is Do.F:
                self._forward(action, feed, draws(action.microbatch))
            else:
                self._backward(action)
            self._stage_io.release(action)
        self.action = None

    def _forward(self, action: Action, feed: Feed, draws: RngStream) -> None:
        """Receive the values, run the user's code with the stage in it, and send the results."""
        begin = perf_counter()
        received = self._leaves(action)
        start = self._record("recv", action, begin)
        seed(draws)
        user_code = self._user_code_run(action, received, draws)
        result, roots = user_code.take(feed, action.microbatch)
        if action.stage == self._last:
            self.results[action.microbatch] = result
        if self._keeps:
            self._keep(action, received, user_code.values, roots)
        self._record("F", action, start)

    def _leaves(self, action: Action) -> dict[str, Tensor]:
        """Wait for the values that a stage reads; return them by name, as leaves of the graph."""
        values = self._stage_io.receive_values(action)
        for wire in self._resources.stage_edges.incoming[action.stage]:
            if self._keeps and wire.edge.has_gradient:
                values[wire.edge.value].requires_grad_()
        return values

    def _user_code_run(
        self, action: Action, received: dict[str, Tensor], draws: RngStream
    ) -> UserCodeRun:
        """Prepare a run of the user's code in which the model's call runs the action's stage."""
        stage = self._resources.stages[action.stage]

        def run(arguments: Arguments) -> dict[str, Any]:
            values: dict[str, Any] = stage(received, arguments, draws.around)
            wires = self._resources.stage_edges.outgoing[action.stage]
            check_values(values, wires, stage.program, keeps=self._keeps)
            begin = perf_counter()
            self._stage_io.send_values(action, self._separate_buffers(action.stage, values))
            self._record("send", action, begin)
            return values

        return UserCodeRun(run, stage.output if action.stage == self._last else None)

    def _separate_buffers(self, stage: int, values: dict[str, Any]) -> dict[str, Any]:
        """Copy those values that are buffers of the stage, which its next microbatch changes."""
        if stage not in self._changing:
            self._changing[stage] = self._resources.stages[stage].changing()
        places = self._changing[stage]
        if not places:
            return values
        return {name: _copied(value, places) for name, value in values.items()}

    def _keep(
        self, action: Action, received: dict[str, Tensor], values: dict[str, Any], roots: Roots
    ) -> None:
        """Keep the data that the backward pass of this microbatch needs."""
        bundles = self._resources.stage_edges.gradients_in[action.stage]
        names = {wire.edge.value for bundle in bundles for wire in bundle.wires}
        place = action.stage, action.microbatch
        trained = {name: values[name] for name in names if values[name].requires_grad}
        self._saved[place] = SavedMicrobatch(
            {name: value for name, value in received.items() if value.requires_grad},
            trained if place in self._rank_schedule.split else _edges(trained),
            roots,
        )
        self._resources.memory.held.add(1)

    def _backward(self, action: Action) -> None:
        """Receive gradients, run one backward action between its hooks, and count its memory."""
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
        """Compute the gradients of B, I or W; send those of the inputs to the stages before.

        Args:
            gradients: Received gradients of the stage's sent values, by name.
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

    def _record(self, kind: str, action: Action, start: float, detail: str = "") -> float:
        """Send an event from `start` to now to `on_event`; return the present time in seconds."""
        end = perf_counter()
        if self._resources.on_event is not None:
            self._resources.on_event(kind, action.stage, action.microbatch, start, end, detail)
        return end


def _edges(values: Mapping[str, Tensor]) -> dict[str, Tensor | GradientEdge]:
    """Return the gradient edges of tensors, by name."""
    return {name: get_gradient_edge(value) for name, value in values.items()}


def _backward(roots: list[tuple[Tensor | GradientEdge, Tensor | None]]) -> None:
    """Run torch's backward pass from these tensors with their gradients; nothing if none."""
    if roots:
        starts, gradients = zip(*roots, strict=True)
        torch.autograd.backward(starts, gradients)


def _copied(value: Any, places: frozenset[int]) -> Any:
    """Copy a tensor whose storage is at one of these addresses; return other values as they are."""
    is_shared = isinstance(value, Tensor) and value.untyped_storage().data_ptr() in places
    return value.clone() if is_shared else value
