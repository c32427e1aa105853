# SPDX-License-Identifier: Apache-2.0
"""Measured costs of layers: each kind of layer is run alone, forward and backward.

Two layers are of one kind if class, configuration and shapes are equal; such layers are measured
once. Each kind is run a few times by itself. Then all kinds whose runs are short take turns, for no
longer than as many runs one after the other could take:

    a a a  b b b  c c c  |  a b c  a b c  a b c

Delayed variables have values only while their layer is run; small ones keep them until all turns
are over. A layer that cannot be run alone gets its estimated cost, in proportion to the measured
ones.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

import tensorflow as tf

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.tensorflow.keras_capture.delayed_values import lent_values
from smdist.modelparallel.tensorflow.keras_capture.layer_program import (
    LayerProgram,
    ProgramStep,
    variables_of,
)
from smdist.modelparallel.tensorflow.keras_planning.layer_estimates import add_loss, estimated
from smdist.modelparallel.tensorflow.keras_planning.layer_timer import FunctionTimer, LayerTimer

_RUNS: Final = (3, 20)  # fewest and most runs of a layer; the fastest counts
_RUN_SECONDS: Final = 0.05  # after so long, there are no more runs than the fewest
_BUDGET_SECONDS: Final = 60.0  # for all measurements; further layers get estimated costs
_WALL_FACTOR: Final = 5.0  # wall time of a budget, on a host that is busy with other work
_TURN_SECONDS: Final = 0.05  # longest forward and backward pass of a layer that takes turns
_KEPT_BYTES: Final = 32 * 2**20  # largest inputs and variables of all layers that take turns


def measure(program: LayerProgram, tick: Callable[[], None] = lambda: None) -> Costs:
    """Return costs of all layers of a program, each kind of which is run on this rank.

    Args:
        program: Program of the model.
        tick: Function that is called before each measurement, which may take seconds.
    """
    budget = TimeBudget(_BUDGET_SECONDS)
    known: dict[str, LayerTimer | None] = {}
    with ExitStack() as kept:
        turns = LayerTurns(kept)
        for step in program.steps:
            kind = _kind(step, program)
            if step.is_layer and kind not in known and budget.is_left():
                tick()
                known[kind] = turns.first_runs(step, program)
        turns.run(tick, budget)
    guessed: dict[str, NodeCost] = {}
    found: dict[str, NodeCost] = {}
    for step in program.steps:
        rough = estimated(step, program)
        timer = known.get(_kind(step, program))
        if timer is None:
            guessed[step.name] = rough
        else:
            found[step.name] = _cost(timer, rough, turns.empty.seconds)
    factor = _speed(program, found)
    nodes = {**found, **{name: _scaled(cost, factor) for name, cost in guessed.items()}}
    add_loss(nodes, program, factor=factor)
    return Costs(nodes=nodes, source="measured", device="cpu")


class TimeBudget:
    """Time of which the lesser of wall and processor time is spent, as for the times of layers.

    A process that waits for the processors of a busy host has spent little: its layers are still
    measured, up to five times the seconds of wall time.

    Args:
        seconds: Seconds that may be spent from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._wall, self._used = time.monotonic(), time.process_time()

    def is_left(self) -> bool:
        """Return True while some of the budget is left."""
        wall = time.monotonic() - self._wall
        spent = min(wall, time.process_time() - self._used)
        return spent < self._seconds and wall < self._seconds * _WALL_FACTOR


class LayerTurns:
    """First runs of layers, and turns of those whose runs are short and whose tensors are small.

    Args:
        kept: Stack that ends when all turns are over; it takes values and states back.

    Attributes:
        empty: Timer of a call that computes nothing, which is no cost of a layer.
    """

    def __init__(self, kept: ExitStack) -> None:
        self.empty = FunctionTimer.of(lambda: [tf.zeros([])])
        self.empty.run(_RUNS[0])
        self._kept = kept
        self._timers: list[LayerTimer] = []
        self._num_bytes = 0

    def first_runs(self, step: ProgramStep, program: LayerProgram) -> LayerTimer | None:
        """Return the timer of a layer after its first runs; None if it cannot be run alone."""
        with ExitStack() as stack:
            stack.enter_context(lent_values(variables_of(step)))
            try:
                timer = LayerTimer.of(step, program)
                stack.callback(timer.drop)  # before lent values are freed
                stack.callback(timer.restore)
                timer.run(_RUNS[0])
                if self._takes_turns(timer):
                    self._timers.append(timer)
                    self._num_bytes += timer.num_bytes
                    self._kept.push(stack.pop_all())
                    return timer
                timer.run(0, _RUNS[1] - _RUNS[0], _RUN_SECONDS)
            except Exception:  # any error: a layer may fail when it is called alone
                return None
            return timer

    def _takes_turns(self, timer: LayerTimer) -> bool:
        is_small = self._num_bytes + timer.num_bytes <= _KEPT_BYTES
        return is_small and timer.seconds <= _TURN_SECONDS

    def run(self, tick: Callable[[], None], budget: TimeBudget) -> None:
        """Run the layers in turns, until they had as many runs as one after the other.

        Args:
            tick: Function that is called before each round of turns.
            budget: Budget of all measurements, after which no round begins.
        """
        rounds = TimeBudget(_RUN_SECONDS * len(self._timers))
        for _ in range(_RUNS[1] - _RUNS[0]):
            if not (rounds.is_left() and budget.is_left()):
                break
            tick()
            self.empty.run_once()
            for timer in self._timers:
                timer.run_once()


def _kind(step: ProgramStep, program: LayerProgram) -> str:
    """Return a text that is equal for layers that take the same time."""
    if not step.is_layer:
        return f"operation {step.name}"
    config = dict(step.operation.get_config()) if _has_config(step.operation) else {}
    config.pop("name", None)
    shapes = [(program.specs[name].shape, program.specs[name].dtype) for name in step.reads]
    trained = [(tuple(each.shape), each.trainable) for each in variables_of(step)]
    own = "" if config else step.name
    return json.dumps([type(step.operation).__name__, own, config, shapes, trained], default=str)


def _has_config(layer: Any) -> bool:
    try:
        layer.get_config()
    except Exception:  # a user's layer may lack it, for many reasons
        return False
    return True


def _cost(timer: LayerTimer, rough: NodeCost, empty_seconds: float) -> NodeCost:
    """Return the cost of a layer by its times.

    Args:
        timer: Timer after all runs.
        rough: Estimated cost.
        empty_seconds: Time of a call that computes nothing.
    """
    forward_seconds = max(timer.forward.seconds - empty_seconds, 0.0)
    whole = max(timer.whole.seconds - empty_seconds, 0.0)
    both = max(whole - forward_seconds, 0.0)
    has_both = timer.gradients_of_inputs and timer.gradients_of_weights
    return NodeCost(
        forward_seconds=forward_seconds,
        input_gradient_seconds=both / 2 if has_both else both * timer.gradients_of_inputs,
        weight_gradient_seconds=both / 2 if has_both else both * (not timer.gradients_of_inputs),
        saved_bytes=rough.saved_bytes,
    )


def _speed(program: LayerProgram, found: dict[str, NodeCost]) -> float:
    """Return how much longer the measured layers took than estimated."""
    rough = sum(estimated(step, program).seconds for step in program.steps if step.name in found)
    return sum(cost.seconds for cost in found.values()) / rough if rough else 1.0


def _scaled(cost: NodeCost, factor: float) -> NodeCost:
    return NodeCost(
        forward_seconds=cost.forward_seconds * factor,
        input_gradient_seconds=cost.input_gradient_seconds * factor,
        weight_gradient_seconds=cost.weight_gradient_seconds * factor,
        saved_bytes=cost.saved_bytes,
    )
