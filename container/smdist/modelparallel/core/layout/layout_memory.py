# SPDX-License-Identifier: Apache-2.0
"""Bytes that the ranks of a pipeline need in a layout: state, gathered weights and activations.

With shards over S replicas, a rank stores 1/S of the state of its stages. Beside it,

    "optimizer"   the whole weights and gradients are in memory for the whole step
    "full"        the whole weights of two layers: one that runs, one that is gathered ahead

A schedule that computes gradients of weights apart needs the whole weights until then, so that
"full" keeps them, too. Whole gradients are kept until the reduction at the end of the step; if each
microbatch reduces, only those of two layers are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from smdist.modelparallel.core.layout.degrees import Layout
from smdist.modelparallel.core.layout.layer_costs import LayerCost
from smdist.modelparallel.core.layout.prediction import MemoryParts
from smdist.modelparallel.core.layout.training_needs import TrainingNeeds
from smdist.modelparallel.core.schedule import SCHEDULES, make_schedule, most_in_flight

_AHEAD = 2  # layers whose weights are whole at once: FSDP2 gathers the next one ahead


def keeps_gathered(layout: Layout) -> bool:
    """Return True if gathered weights stay in memory until the end of the step."""
    splits = layout.pipeline > 1 and SCHEDULES[layout.schedule].splits_backward
    return layout.sharding == "optimizer" or (layout.sharding == "full" and splits)


def state_bytes_per_element(layout: Layout, needs: TrainingNeeds) -> float:
    """Return the bytes for each parameter element that stay on a rank for the whole step."""
    precision = needs.precision
    if layout.sharding == "none":
        return precision.weight + precision.gradient + precision.optimizer
    sharded = (precision.shard + precision.sum) / layout.shard_degree
    whole = precision.sum if reduces_at_end(layout, needs) else 0.0
    if layout.shard_degree == 1:
        whole = 0.0
    return sharded + whole + (precision.gathered if keeps_gathered(layout) else 0.0)


def reduces_at_end(layout: Layout, needs: TrainingNeeds) -> bool:
    """Return True if whole gradients are kept until the last microbatch.

    Reductions of each microbatch are predicted for one stage on each rank alone.
    """
    reduction = layout.reduction if needs.reduction == "auto" else needs.reduction
    return reduction == "step" or layout.pipeline > 1 or layout.sharding != "full"


def in_flight(layout: Layout) -> tuple[int, ...]:
    """Return the most microbatches whose activations each stage holds, by stage."""
    if layout.pipeline == 1:
        return (1,)
    longest = 4 * layout.pipeline * layout.virtual_stages  # more do not change the peak
    count = min(layout.num_microbatches, longest)
    return _in_flight(layout.schedule, layout.pipeline, count, layout.virtual_stages)


@cache
def _in_flight(schedule: str, ranks: int, microbatches: int, virtual: int) -> tuple[int, ...]:
    made = make_schedule(
        schedule, num_ranks=ranks, num_microbatches=microbatches, virtual_stages=virtual
    )
    return most_in_flight(made)


def stage_memory(
    costs: Sequence[LayerCost], held: int, layout: Layout, needs: TrainingNeeds
) -> MemoryParts:
    """Return the bytes of one stage.

    Args:
        costs: Costs of the stage's layers.
        held: Microbatches whose activations the stage holds at once.
        layout: The layout.
        needs: Precision and margins of the training.
    """
    elements = sum(cost.num_parameters for cost in costs)
    activations = held * sum(cost.saved_bytes for cost in costs)
    workspace = max(cost.workspace_bytes for cost in costs)
    return MemoryParts(
        state=elements * state_bytes_per_element(layout, needs),
        gathered=gathered_bytes(costs, layout, needs),
        activations=activations,
        workspace=workspace,
        margin=needs.memory_margin * (activations + workspace),
    )


def gathered_bytes(costs: Sequence[LayerCost], layout: Layout, needs: TrainingNeeds) -> float:
    """Return the bytes of whole weights and gradients that are there only while layers run."""
    if layout.sharding != "full" or keeps_gathered(layout) or layout.shard_degree == 1:
        return 0.0
    per_element = needs.precision.gathered
    if not reduces_at_end(layout, needs):
        per_element += needs.precision.sum
    largest = sorted((cost.num_parameters for cost in costs), reverse=True)[:_AHEAD]
    return sum(largest) * per_element


def rank_memory(stages: Sequence[MemoryParts]) -> MemoryParts:
    """Return the bytes of a rank with these stages, of which one runs at a time."""
    return MemoryParts(
        state=sum(each.state for each in stages),
        gathered=max(each.gathered for each in stages),
        activations=sum(each.activations for each in stages),
        workspace=max(each.workspace for each in stages),
        margin=sum(each.margin for each in stages),
    )
