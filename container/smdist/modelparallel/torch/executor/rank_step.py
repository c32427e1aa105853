# SPDX-License-Identifier: Apache-2.0
"""One step of one rank: its actions in order, and the values kept between them.

The user's code around the model (the feed) runs once for each stage and microbatch:

    def feed(microbatch, call):
        x, y = batches[microbatch]
        loss = criterion(call(((x,), {})), y)     call() returns on the last stage only
        return loss.detach(), [(loss / 8, None)]

On the other stages `call` runs the stage, sends its values, and raises `PassedOn`. So contexts
around the model, such as autocast, are around each of its stages.
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
_NAME: Final = ":feed"  # name for the seeds of random numbers around the model
_HINT: Final = "Call the model once for each microbatch, and let PassedOn through"


class PassedOn(BaseException):
    """Signal that the stage has run and later stages continue; user code must not catch it."""


class UserCodeRun:
    """One run of the feed.

    Args:
        run: Runs the stage; takes the model's arguments and returns the values that it keeps.
        output: Returns the model's result from these values; None if the stage is not the last.
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
        """Run the feed; return its result, or nothing if `PassedOn` ended it.

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
            raise _wrong("caught PassedOn, which ends it on all stages but the last")
        return _checked(answer)


def seed(draws: RngStream) -> None:
    """Seed torch's generators for one run of the feed.

    The feed runs once for each stage, on several ranks; all its runs for a microbatch see the
    same random numbers.
    """
    seed_generators(draws.seed_of(_NAME))


def _checked(answer: Any) -> tuple[Any, Roots]:
    is_pair = isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], list)
    if not is_pair:
        raise OptionError(
            f"the feed returned {type(answer).__name__}",
            "it returns a result and a list of (tensor, gradient): where the backward pass starts",
            "Return such a pair; an empty list starts none",
        )
    result, roots = answer
    return result, roots


def _wrong(what: str) -> OptionError:
    return OptionError(f"the feed {what}", "each run of it is one microbatch's", _HINT)


OnEvent = Callable[[str, int, int, float, float, str], None]


class StageHooks(Protocol):
    """Hooks around each backward action of a stage: B, I and W.

    `is_last` is true for the action that ends the stage's backward pass in this step.
    """

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Handle the start of a backward action."""

    def after_backward(self, stage: int, is_last: bool) -> None:
        """Handle the end of a backward action; gradients of its inputs have been sent."""


@dataclass(frozen=True, slots=True)
class SavedMicrobatch:
    """A stage and microbatch between forward and backward pass.

    Attributes:
        received: Values that the stage read, by name: leaves that get a gradient.
        passed_on: Values that the stage sent and that gradients return for, by name. If the
            backward pass is not split, only their edges in the graph are kept, not their numbers.
        roots: Further starts of the backward pass.
    """

    received: Mapping[str, Tensor]
    passed_on: Mapping[str, Tensor | GradientEdge]
    roots: Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResources:
    """Objects that a step runs with; they last from step to step."""

    stages: Mapping[int, StageModule]
    stage_edges: StageEdges
    memory: MemoryCounter
    hooks: StageHooks | None
    on_event: OnEvent | None


class RankStep:
    """All actions of one rank in one step."""

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
        """Run all actions; results of the last stage are in `results`, by microbatch."""
        stops = self._rank_schedule.stops
        for action in stops[:1]:
            self._stage_io.announce(action)
        for action, following in zip(stops, [*stops[1:], None], strict=True):
            self.action = action
            self._resources.stages[action.stage].rest()
            if following is not None:
                self._stage_io.announce(following)
            if action.do is Do.F:
                self._forward(action, feed, draws(action.microbatch))
            else:
                self._backward(action)
            self._stage_io.release(action)
        self.action = None

    def _forward(self, action: Action, feed: Feed, draws: RngStream) -> None:
        begin = perf_counter()
        received = self._leaves(action)
        start = self._tell("recv", action, begin)
        seed(draws)
        turn = self._turn(action, received, draws)
        result, roots = turn.take(feed, action.microbatch)
        if action.stage == self._last:
            self.results[action.microbatch] = result
        if self._keeps:
            self._keep(action, received, turn.values, roots)
        self._tell("F", action, start)

    def _leaves(self, action: Action) -> dict[str, Tensor]:
        values = self._stage_io.values(action)
        for wire in self._resources.stage_edges.incoming[action.stage]:
            if self._keeps and wire.edge.has_gradient:
                values[wire.edge.value].requires_grad_()
        return values

    def _turn(self, action: Action, received: dict[str, Tensor], draws: RngStream) -> UserCodeRun:
        stage = self._resources.stages[action.stage]

        def run(arguments: Arguments) -> dict[str, Any]:
            values: dict[str, Any] = stage(received, arguments, draws.around)
            wires = self._resources.stage_edges.outgoing[action.stage]
            check_values(values, wires, stage.program, keeps=self._keeps)
            begin = perf_counter()
            self._stage_io.pass_on(action, self._apart(action.stage, values))
            self._tell("send", action, begin)
            return values

        return UserCodeRun(run, stage.output if action.stage == self._last else None)

    def _apart(self, stage: int, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values with copies of buffers that the stage's next microbatch changes."""
        if stage not in self._changing:
            self._changing[stage] = self._resources.stages[stage].changing()
        places = self._changing[stage]
        if not places:
            return values
        return {name: _copied(value, places) for name, value in values.items()}

    def _keep(
        self, action: Action, received: dict[str, Tensor], values: dict[str, Any], roots: Roots
    ) -> None:
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
        begin = perf_counter()
        gradients = self._stage_io.gradients(action) if action.do is not Do.W else {}
        start = self._tell("recv", action, begin) if action.do is not Do.W else begin
        hooks, is_last = self._resources.hooks, action in self._rank_schedule.last
        if hooks is not None:
            hooks.before_backward(action.stage, is_last)
        self._differentiate(action, gradients)
        if hooks is not None:
            hooks.after_backward(action.stage, is_last)
        if action.do is not Do.I:
            self._resources.memory.held.add(-1)
        self._tell(action.do.value, action, start)

    def _differentiate(self, action: Action, gradients: dict[str, Tensor]) -> None:
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
        self._stage_io.pass_back(action, found)
        self._tell("send", action, begin)

    def _tell(self, kind: str, action: Action, start: float, detail: str = "") -> float:
        """Report an event that ends now; return the present time in seconds."""
        end = perf_counter()
        if self._resources.on_event is not None:
            self._resources.on_event(kind, action.stage, action.microbatch, start, end, detail)
        return end


def _edges(values: Mapping[str, Tensor]) -> dict[str, Tensor | GradientEdge]:
    return {name: get_gradient_edge(value) for name, value in values.items()}


def _backward(roots: list[tuple[Tensor | GradientEdge, Tensor | None]]) -> None:
    if roots:
        starts, gradients = zip(*roots, strict=True)
        torch.autograd.backward(starts, gradients)


def _copied(value: Any, places: frozenset[int]) -> Any:
    is_shared = isinstance(value, Tensor) and value.untyped_storage().data_ptr() in places
    return value.clone() if is_shared else value
