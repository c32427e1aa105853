# SPDX-License-Identifier: Apache-2.0
"""Plan of a model in two steps: the layout of the training, then the stages of its pipeline.

The layout needs two captures of the model, of its smallest and of its largest microbatch. With the
layout's degrees, microbatches, shards and checkpoints, few pipelines are left to try.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.layout import (
    Layout,
    LayoutSearch,
    Machine,
    Precision,
    TrainingNeeds,
    find_layout,
)
from smdist.modelparallel.core.layout.from_graph import (
    MicrobatchCosts,
    checkpointed,
    layers_between,
)
from smdist.modelparallel.core.layout.layout_memory import state_bytes_per_element
from smdist.modelparallel.core.planner.problem import AUTO
from smdist.modelparallel.picture.drawable_plan import Plan
from smdist.modelparallel.torch.planning.make_plan import plan
from smdist.modelparallel.torch.planning.plan_request import Request, read_request
from smdist.modelparallel.torch.program.batch import Batch, Example
from smdist.modelparallel.torch.smp.activation_checkpointing import set_activation_checkpointing

_OF_STAGES: Final = ("optimize", "memory_weight", "default_partition", "active_microbatches")
_FP32: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWithLayout:
    """Plan of a model, with the search that chose its degrees.

    Attributes:
        plan: Stages and schedule for the chosen degrees.
        search: Search of the layout; None if the user's options left nothing to search.
        machine: Machine of the search.
    """

    plan: Plan
    search: LayoutSearch | None
    machine: Machine


def plan_with_layout(
    model: nn.Module, example: Example | Batch, machine: Machine, *,
    costs: str = "auto", device_memory: int | str | None = None, state: StateBytes,
    **options: Any,
) -> PlanWithLayout:  # fmt: skip
    """Find the fastest layout of a model's training, and the plan of its stages.

    Args:
        model: The model, with values or on the meta device. If the layout checkpoints activations,
            its modules are changed to do so.
        example: Arguments of the model for the batch of one replica; dimension 0 is samples.
        machine: Cluster to plan for, and its speeds.
        costs, device_memory, state, options: As in `smp.plan`. Degrees and microbatches that are
            not "auto" are kept; options of stages leave the layout to the planner of pipelines.

    Raises:
        OptionError: The model or an option is wrong, or no layout fits in memory.
    """
    cluster = machine.cluster
    known = {"costs": costs, "device_memory": device_memory}
    if _leaves_nothing(options):
        found = plan(model, example, cluster, state=state, **known, **options)  # type: ignore[arg-type]
        return PlanWithLayout(plan=found, search=None, machine=machine)
    checked = {
        name: None if value == AUTO and name != "pipeline" else value
        for name, value in options.items()
    }
    request = read_request(model, example, cluster, state=state, **known, **checked)  # type: ignore[arg-type]
    search = _search(request, machine, options)
    layout = search.best.layout
    if layout.checkpointing != "none":
        graph, costs_of = request.sampler.at(_smallest(request, options), frozenset())
        for name in checkpointed(graph, costs_of, layout.checkpointing):
            set_activation_checkpointing(model.get_submodule(name))
    chosen = {
        **options,
        "pipeline_parallel_degree": layout.pipeline,
        "data_parallel_degree": AUTO,
        "microbatches": layout.num_microbatches,
    }
    found = plan(model, example, cluster, state=_state(layout, state, request), **known, **chosen)  # type: ignore[arg-type]
    return PlanWithLayout(plan=found, search=search, machine=machine)


def _leaves_nothing(options: dict[str, Any]) -> bool:
    """Return True if options of stages are set, which only the planner of pipelines knows."""
    is_by_hand = options.get("auto_partition", True) is not True
    fixed = options.get("pipeline", AUTO) != AUTO or options.get("virtual_stages") is not None
    return is_by_hand or fixed or any(options.get(name) is not None for name in _OF_STAGES)


def _search(request: Request, machine: Machine, options: dict[str, Any]) -> LayoutSearch:
    small, large = (
        _captured(request, count)
        for count in (_smallest(request, options), _fixed(options, "microbatches") or 1)
    )
    model = layers_between(small, large, machine)
    size, data = machine.cluster.size, _fixed(options, "data_parallel_degree")
    needs = TrainingNeeds(
        batch_per_replica=request.batch_size,
        precision=_precision(request.state),
        memory_bytes=request.memory_bytes,
        pipeline=_fixed(options, "pipeline_parallel_degree") or (size // data if data else None),
        num_microbatches=_fixed(options, "microbatches"),
        tensor=1,
        offload=False,
    )
    return find_layout(model, machine, needs)


def _captured(request: Request, count: int) -> MicrobatchCosts:
    graph, costs = request.sampler.at(count, frozenset())
    return MicrobatchCosts(graph=graph, costs=costs, samples=request.batch_size // count)


def _fixed(options: dict[str, Any], name: str) -> int | None:
    value = options.get(name, AUTO)
    return None if value == AUTO else value


def _smallest(request: Request, options: dict[str, Any]) -> int:
    """Return the number of microbatches of the capture: the user's, or one for each sample."""
    return _fixed(options, "microbatches") or request.batch_size


def _precision(state: StateBytes) -> Precision:
    """Return the bytes of the user's state, as whole and as sharded state.

    Weights of 16 bits have float32 masters in their optimizer state, which become the shards.
    """
    is_half = state.weight < _FP32
    return Precision(
        name="given",
        weight=state.weight,
        gradient=state.gradient,
        optimizer=state.optimizer,
        shard=state.optimizer if is_half else state.weight + state.optimizer,
        gathered=state.weight,
        sum=max(state.gradient, float(_FP32)) if state.gradient else 0.0,
    )


def _state(layout: Layout, state: StateBytes, request: Request) -> StateBytes:
    """Return the bytes that a layout keeps of each parameter element, for the planner of stages."""
    if layout.sharding == "none":
        return state
    needs = TrainingNeeds(
        batch_per_replica=request.batch_size, precision=_precision(state)
    )  # fmt: skip
    total = state_bytes_per_element(layout, needs)
    weight, gradient = min(total, state.weight), state.gradient
    return StateBytes(
        weight=weight, gradient=gradient, optimizer=max(0.0, total - weight - gradient)
    )
