# SPDX-License-Identifier: Apache-2.0
"""One step of one rank: its actions, in order, and what is kept from one to another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from smdist.modelparallel.core.schedule.actions import Action, Do
from smdist.modelparallel.torch.executor.check import check_values
from smdist.modelparallel.torch.executor.course import Course
from smdist.modelparallel.torch.executor.feed import Arguments, Feed, Roots, Turn, seed
from smdist.modelparallel.torch.executor.halves import Rest, backward_inputs
from smdist.modelparallel.torch.executor.ledger import Ledger
from smdist.modelparallel.torch.executor.traffic import Traffic
from smdist.modelparallel.torch.executor.wiring import Wiring
from smdist.modelparallel.torch.randomness import Draws
from smdist.modelparallel.torch.stage import StageModule

OnEvent = Callable[[str, int, int, float, float, str], None]


class StageHooks(Protocol):
    """What happens around each backward action of a stage: B, I and W.

    `is_last` is true for the one that ends the stage's backward pass in this step.
    """

    def before_backward(self, stage: int, is_last: bool) -> None:
        """It begins."""

    def after_backward(self, stage: int, is_last: bool) -> None:
        """It has ended, and gradients of its inputs are on their way."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A stage and microbatch between forward and backward.

    Attributes:
        received: What the stage has read, by name: leaves that get a gradient.
        passed_on: Where gradients come back to, by name of what it has sent. Where the backward
            pass is one, its place in the graph: the numbers themselves are let go.
        roots: Where the backward pass starts, besides.
    """

    received: Mapping[str, Tensor]
    passed_on: Mapping[str, Tensor | GradientEdge]
    roots: Roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a step runs with."""

    stages: Mapping[int, StageModule]
    wiring: Wiring
    ledger: Ledger
    hooks: StageHooks | None
    on_event: OnEvent | None


class Step:
    """All actions of one rank in one step."""

    def __init__(self, tools: Tools, course: Course, traffic: Traffic, *, keeps: bool) -> None:
        self._tools, self._course, self._traffic, self._keeps = tools, course, traffic, keeps
        self._kept: dict[tuple[int, int], Kept] = {}
        self._rests: dict[tuple[int, int], Rest] = {}
        self._changing: dict[int, frozenset[int]] = {}
        self.results: dict[int, Any] = {}
        self.action: Action | None = None
        self._last = len(tools.wiring.incoming) - 1

    def run(self, feed: Feed, draws: Callable[[int], Draws]) -> None:
        """Run all actions: results of the last stage are in `results` by microbatch."""
        stops = self._course.stops
        for action in stops[:1]:
            self._traffic.announce(action)
        for action, following in zip(stops, [*stops[1:], None], strict=True):
            self.action = action
            self._tools.stages[action.stage].rest()
            if following is not None:
                self._traffic.announce(following)
            if action.do is Do.F:
                self._forward(action, feed, draws(action.microbatch))
            else:
                self._backward(action)
            self._traffic.release(action)
        self.action = None

    def _forward(self, action: Action, feed: Feed, draws: Draws) -> None:
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
        values = self._traffic.values(action)
        for wire in self._tools.wiring.incoming[action.stage]:
            if self._keeps and wire.edge.has_gradient:
                values[wire.edge.value].requires_grad_()
        return values

    def _turn(self, action: Action, received: dict[str, Tensor], draws: Draws) -> Turn:
        stage = self._tools.stages[action.stage]

        def run(arguments: Arguments) -> dict[str, Any]:
            values: dict[str, Any] = stage(received, arguments, draws.around)
            wires = self._tools.wiring.outgoing[action.stage]
            check_values(values, wires, stage.program, keeps=self._keeps)
            begin = perf_counter()
            self._traffic.pass_on(action, self._apart(action.stage, values))
            self._tell("send", action, begin)
            return values

        return Turn(run, stage.output if action.stage == self._last else None)

    def _apart(self, stage: int, values: dict[str, Any]) -> dict[str, Any]:
        """The same, without memory that the stage's next microbatch changes: its statistics."""
        if stage not in self._changing:
            self._changing[stage] = self._tools.stages[stage].changing()
        places = self._changing[stage]
        if not places:
            return values
        return {name: _copied(value, places) for name, value in values.items()}

    def _keep(
        self, action: Action, received: dict[str, Tensor], values: dict[str, Any], roots: Roots
    ) -> None:
        bundles = self._tools.wiring.gradients_in[action.stage]
        names = {wire.edge.value for bundle in bundles for wire in bundle.wires}
        place = action.stage, action.microbatch
        trained = {name: values[name] for name in names if values[name].requires_grad}
        self._kept[place] = Kept(
            {name: value for name, value in received.items() if value.requires_grad},
            trained if place in self._course.split else _edges(trained),
            roots,
        )
        self._tools.ledger.held.add(1)

    def _backward(self, action: Action) -> None:
        begin = perf_counter()
        gradients = self._traffic.gradients(action) if action.do is not Do.W else {}
        start = self._tell("recv", action, begin) if action.do is not Do.W else begin
        hooks, is_last = self._tools.hooks, action in self._course.last
        if hooks is not None:
            hooks.before_backward(action.stage, is_last)
        self._differentiate(action, gradients)
        if hooks is not None:
            hooks.after_backward(action.stage, is_last)
        if action.do is not Do.I:
            self._tools.ledger.held.add(-1)
        self._tell(action.do.value, action, start)

    def _differentiate(self, action: Action, gradients: dict[str, Tensor]) -> None:
        place = action.stage, action.microbatch
        if action.do is Do.W:
            self._rests.pop(place).backward_parameters()
            return
        kept = self._kept.pop(place)
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
        self._traffic.pass_back(action, found)
        self._tell("send", action, begin)

    def _tell(self, kind: str, action: Action, start: float, detail: str = "") -> float:
        """Report what has just ended; the time that it is."""
        end = perf_counter()
        if self._tools.on_event is not None:
            self._tools.on_event(kind, action.stage, action.microbatch, start, end, detail)
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
