# SPDX-License-Identifier: Apache-2.0
"""Evaluation of one layout: lower bounds first, then a division into stages, then its prediction.

`LayoutEvaluator` keeps what many layouts have in common: costs of layers for one microbatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache
from itertools import accumulate, combinations, pairwise, starmap
from math import comb
from typing import Final

from smdist.modelparallel.core.layout.degrees import Layout
from smdist.modelparallel.core.layout.float32_speed import float32_slowdown
from smdist.modelparallel.core.layout.layer_costs import LayerCost, layer_cost
from smdist.modelparallel.core.layout.layer_model import Layer, LayerModel
from smdist.modelparallel.core.layout.layout_memory import (
    gathered_bytes,
    in_flight,
    rank_memory,
    stage_memory,
    state_bytes_per_element,
)
from smdist.modelparallel.core.layout.machine_speed import Machine
from smdist.modelparallel.core.layout.prediction import LayoutMisfit, MemoryParts, Prediction
from smdist.modelparallel.core.layout.stage_division import StageLimit, divide
from smdist.modelparallel.core.layout.step_time import (
    StageTime,
    stage_time,
    stages_of,
    step_parts,
)
from smdist.modelparallel.core.layout.training_needs import TrainingNeeds
from smdist.modelparallel.core.schedule import SCHEDULES

_Key = tuple[int, int, str, bool]
_FLOAT32: Final = 4  # bytes of a weight
_ROUNDING: Final = 1e-9  # relative error of differences of sums, and more
_FEW: Final = 40  # divisions into stages that are all tried


class Verdict(Enum):
    """Reason why a layout has no prediction."""

    FULL = "full"  # no division into stages fits in memory
    SLOW = "slow"  # the step takes longer than the limit


class LayoutEvaluator:
    """Evaluator of the layouts of one model on one machine.

    Args:
        model: Layers of the model.
        machine: Cluster and its efficiency.
        needs: Batch, precision and fixed options of the training.
    """

    def __init__(self, model: LayerModel, machine: Machine, needs: TrainingNeeds) -> None:
        self.model, self.machine, self.needs = model, machine, needs
        limit = needs.memory_bytes or machine.cluster.device.memory_bytes
        self.limit = float("inf") if limit is None else float(limit)
        is_float32 = model.is_float32 and needs.precision.weight >= _FLOAT32
        self._slowdown = float32_slowdown(machine.cluster.device) if is_float32 else 1.0
        self._costs: dict[_Key, tuple[LayerCost, ...]] = {}
        self._seconds: dict[_Key, list[float]] = {}
        self._totals: dict[_Key, tuple[float, float]] = {}
        self._sums: dict[_Key, tuple[list[float], list[float]]] = {}

    def costs(self, layout: Layout) -> tuple[LayerCost, ...]:
        """Return the cost of each layer for one microbatch."""
        key = _key(layout)
        if key not in self._costs:
            known: dict[Layer, LayerCost] = {}
            layers = self.model.layers_on(layout.tensor)
            for layer in dict.fromkeys(layers):
                known[layer] = layer_cost(self.machine, layer, *key)
            self._costs[key] = tuple(known[layer] for layer in layers)
            seconds = {id(cost): cost.seconds for cost in known.values()}
            times = [seconds[id(cost)] for cost in self._costs[key]]
            self._seconds[key], self._totals[key] = times, (sum(times), max(times))
            self._sums[key] = (
                list(accumulate((cost.ahead_seconds for cost in self._costs[key]), initial=0.0)),
                list(accumulate((cost.behind_seconds for cost in self._costs[key]), initial=0.0)),
            )
        return self._costs[key]

    def least_seconds(self, layout: Layout) -> float:
        """Return a lower bound on the seconds of a step, without a division into stages.

        A rank computes its part of all microbatches. In a pipeline with one stage on each rank, it
        also waits for one microbatch on each earlier stage; the step is shortest if all ranks
        finish together (the sum of a geometric series).
        """
        self.costs(layout)
        total, slowest = self._totals[_key(layout)]
        count, ranks = layout.num_microbatches, layout.pipeline
        least = count * max(total / ranks, slowest)
        is_plain = layout.virtual_stages == 1 and not SCHEDULES[layout.schedule].splits_backward
        if ranks > 1 and is_plain and count > 1:
            least = max(least, total / (1 - (1 - 1 / count) ** ranks))
        elif ranks > 1 and is_plain:
            least = max(least, total)
        return least

    def predict(self, layout: Layout, *, below: float = float("inf")) -> Prediction | Verdict:
        """Return the prediction of a layout, or why there is none.

        Args:
            layout: The layout.
            below: Seconds of a step; a layout that takes longer is not predicted any further.
        """
        costs = self.costs(layout)
        fitting, are_slow = [], False

        @cache  # divisions of one layout have many stages in common
        def time_of(start: int, end: int) -> StageTime:
            return stage_time(self.machine, costs[start:end], layout, self.needs)

        for ends in self._divisions(costs, layout):
            if self._computed_least(ends, layout) >= below:
                are_slow = True
                continue
            memory = self._memory(_parts_of(costs, ends), layout)
            if memory.total <= self.limit:
                times = list(starmap(time_of, pairwise((0, *ends))))
                fitting.append((_least(times, layout), ends, memory, times))
        if not fitting:
            return Verdict.SLOW if are_slow else Verdict.FULL
        best: Prediction | Verdict = Verdict.SLOW
        for least, ends, memory, times in sorted(fitting, key=lambda each: each[:2]):
            if least >= below:
                break
            time = step_parts(self.machine, times, self._sent(ends, layout), layout)
            if isinstance(best, Verdict) or time.step < best.time.step:
                best = Prediction(
                    layout=layout, time=time, memory=memory, stages=ends,
                    spread=self.machine.spread, slowdown=self._slowdown,
                )  # fmt: skip
                below = min(below, time.step)
        return best

    def _computed_least(self, ends: tuple[int, ...], layout: Layout) -> float:
        """Return a lower bound on a step with these stages, from computation and messages alone."""
        ahead, behind = self._sums[_key(layout)]
        bounds = list(pairwise((0, *ends)))
        forward = [ahead[end] - ahead[start] for start, end in bounds]
        backward = [behind[end] - behind[start] for start, end in bounds]
        return (1 - _ROUNDING) * _least_waiting(forward, backward, layout)

    def _divisions(self, costs: Sequence[LayerCost], layout: Layout) -> Iterator[tuple[int, ...]]:
        """Yield divisions into stages: all if they are few, otherwise the fastest that fits.

        The fastest one balances the time of stages. In short pipelines, an uneven one can fill a
        bubble better.
        """
        num_cuts = layout.pipeline * layout.virtual_stages - 1
        if comb(len(costs) - 1, num_cuts) <= _FEW:
            for cuts in combinations(range(1, len(costs)), num_cuts):
                yield (*cuts, len(costs))
            return
        ends = self._division(costs, layout)
        if ends is not None:
            yield ends

    def _division(self, costs: Sequence[LayerCost], layout: Layout) -> tuple[int, ...] | None:
        """Return the ends of the stages of the fastest division that fits, or None."""
        times = self._seconds[_key(layout)]
        num_stages = layout.pipeline * layout.virtual_stages
        if self.limit == float("inf"):
            return divide(times, num_stages)
        per_element = state_bytes_per_element(layout, self.needs)
        state = per_element * sum(cost.num_parameters for cost in costs)
        if state > self.limit * layout.pipeline:  # saves most divisions that cannot fit
            return None
        return divide(times, num_stages, self._stage_limit(costs, layout))

    def _stage_limit(self, costs: Sequence[LayerCost], layout: Layout) -> StageLimit:
        """Return the memory of the stages, for their division.

        Temporary memory is that of the largest layer of a stage. The layer with the most counts its
        excess over the second layer by itself, so that a stage without it has more room.
        """
        needs = self.needs
        per_element, more = state_bytes_per_element(layout, needs), 1 + needs.memory_margin
        spaces = sorted({cost.workspace_bytes for cost in costs}, reverse=True)
        common = spaces[1] if len(spaces) > 1 else spaces[0]
        base = gathered_bytes(costs, layout, needs) + more * common
        return StageLimit(
            fixed=[
                cost.num_parameters * per_element + more * max(0.0, cost.workspace_bytes - common)
                for cost in costs
            ],
            held=[more * cost.saved_bytes for cost in costs],
            in_flight=in_flight(layout),
            limit_bytes=(self.limit - base) / layout.virtual_stages,
        )

    def _memory(self, parts: Sequence[Sequence[LayerCost]], layout: Layout) -> MemoryParts:
        """Return the bytes of the fullest rank."""
        held = in_flight(layout)
        stages = [
            stage_memory(part, count, layout, self.needs)
            for part, count in zip(parts, held, strict=True)
        ]
        ranks = [
            rank_memory([stages[each] for each in stages_of(rank, layout)])
            for rank in range(layout.pipeline)
        ]
        return max(ranks, key=lambda each: each.total)

    def misfit(self, layout: Layout) -> LayoutMisfit | None:
        """Return the memory of the division that balances time; None for too few layers."""
        costs = self.costs(layout)
        num_stages = layout.pipeline * layout.virtual_stages
        ends = divide([cost.seconds for cost in costs], num_stages)
        if ends is None:
            return None
        memory = self._memory(_parts_of(costs, ends), layout)
        return LayoutMisfit(layout=layout, memory=memory, limit_bytes=self.limit)

    def _sent(self, ends: tuple[int, ...], layout: Layout) -> list[int]:
        """Return the bytes that each stage but the last sends for one microbatch."""
        layers = self.model.layers_on(layout.tensor)
        return [round(layers[end - 1].boundary_bytes * layout.microbatch) for end in ends[:-1]]


def _key(layout: Layout) -> _Key:
    """Return what the costs of layers depend on."""
    return (layout.tensor, layout.microbatch, layout.checkpointing, layout.offload)


def _parts_of(costs: Sequence[LayerCost], ends: tuple[int, ...]) -> list[Sequence[LayerCost]]:
    return [costs[start:end] for start, end in zip((0, *ends[:-1]), ends, strict=True)]


def _least(times: Sequence[StageTime], layout: Layout) -> float:
    """Return a lower bound on a step with these stages, without a simulation.

    After the last backward pass, the first stage sums its gradients, and all weights are updated.
    """
    least = _least_waiting(
        [each.forward for each in times], [each.backward for each in times], layout
    )
    if layout.pipeline == 1:
        return least
    updated = min(
        sum(times[each].updated for each in stages_of(rank, layout))
        for rank in range(layout.pipeline)
    )
    return least + times[0].exposed + max(each.once for each in times) + updated


def _least_waiting(forward: Sequence[float], backward: Sequence[float], layout: Layout) -> float:
    """Return a lower bound on the seconds until the last backward pass of a step.

    A rank waits for the forward passes of the stages before its first one, computes all
    microbatches, and waits for the backward passes of these stages.

    Args:
        forward: Seconds of the forward pass of each stage for one microbatch.
        backward: Seconds of the backward pass.
        layout: The layout.
    """
    count, least = layout.num_microbatches, 0.0
    drained = 2 if SCHEDULES[layout.schedule].splits_backward else 1
    before = drain = 0.0  # the first stage of a rank has the rank's number
    for rank in range(layout.pipeline):
        mine = stages_of(rank, layout)
        load = count * sum(forward[each] + backward[each] for each in mine)
        least = max(least, before + load + drain)
        before, drain = before + forward[rank], drain + backward[rank] / drained
    return least
