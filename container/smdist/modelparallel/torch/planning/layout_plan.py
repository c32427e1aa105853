# SPDX-License-Identifier: Apache-2.0
"""Plan of a model in two steps: the layout of the training, then the stages of its pipeline.

The layout needs two captures of the model, of its smallest and of its largest microbatch. With the
layout's degrees, microbatches, shards and checkpoints, few pipelines are left to try. The plan has
the layout's shards, the time of reductions and the modules that are checkpointed, so that a job
that takes the plan runs the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import nn

from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import StateBytes
from smdist.modelparallel.core.layout import (
    LayerModel,
    Layout,
    LayoutSearch,
    Machine,
    Precision,
    TrainingNeeds,
    find_layout,
    why_whole,
)
from smdist.modelparallel.core.layout.from_graph import (
    MicrobatchCosts,
    SplitCosts,
    checkpointed,
    layers_between,
    with_splits,
)
from smdist.modelparallel.core.layout.layout_memory import state_bytes_per_element
from smdist.modelparallel.core.layout.training_needs import SCHEDULES_TRIED
from smdist.modelparallel.core.plan.plan_check import divisors
from smdist.modelparallel.core.plan_errors import PlanError, PlanMemoryError
from smdist.modelparallel.core.planner.cost_samples import SizeError
from smdist.modelparallel.core.planner.problem import AUTO
from smdist.modelparallel.picture.drawable_plan import Plan
from smdist.modelparallel.torch.capture import CaptureError
from smdist.modelparallel.torch.planning.make_plan import plan, plan_of
from smdist.modelparallel.torch.planning.plan_request import Request, read_request
from smdist.modelparallel.torch.planning.split_variants import (
    LayoutCosts,
    Variant,
    split_variants,
)
from smdist.modelparallel.torch.program.batch import Batch, Example
from smdist.modelparallel.torch.program.checkpointed_forward import (
    checkpoint_forward,
    is_checkpointed,
    plain_forward,
)

_OF_STAGES: Final = ("optimize", "memory_weight", "default_partition", "active_microbatches")
_FP32: Final = 4
_TRIES: Final = 5
_LESS: Final = 0.85  # memory of a search after one whose layout did not fit
_IN_ONE_PART: Final = "1f1b"  # the schedule if gradients are reduced in each backward pass


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedShards:
    """Choices of the user that limit the shards of a layout.

    Attributes:
        shard_degree: Replicas that divide one copy of the state; None to search it.
        reduction: Time at which sharded gradients are reduced: "step", "microbatch", or "auto".
        only_shards: True to leave out layouts whose replicas keep whole state.
        precision: Bytes of each parameter element; None for those of the user's state.
        tensor: Number of ranks that split each layer of the user's whole model; None to search it.
        offload: True if activations are kept in the host's memory; None to search it.
    """

    shard_degree: int | None = None
    reduction: str = "auto"
    only_shards: bool = False
    precision: Precision | None = None
    tensor: int | None = None
    offload: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWithLayout:
    """Plan of a model, with the search that chose its degrees.

    Attributes:
        plan: Stages and schedule for the chosen degrees, with the layout's shards.
        search: Search of the layout; None if the user's options left nothing to search.
        machine: Machine of the search.
        unsplit: Reason why no layer was split over ranks in the search; "" if some were, or if
            there was nothing to try.
    """

    plan: Plan
    search: LayoutSearch | None
    machine: Machine
    unsplit: str = ""


def plan_with_layout(
    model: nn.Module, example: Example | Batch, machine: Machine, *,
    costs: str = "auto", device_memory: int | str | None = None, state: StateBytes,
    shards: FixedShards | None = None, **options: Any,
) -> PlanWithLayout:  # fmt: skip
    """Find the fastest layout of a model's training, and the plan of its stages.

    Args:
        model: The model, with values or on the meta device. If the layout checkpoints activations,
            its modules are changed to do so.
        example: Arguments of the model for the batch of one replica; dimension 0 is samples.
        machine: Cluster to plan for, and its speeds.
        costs, device_memory, state, options: As in `smp.plan`. Degrees, microbatches and schedules
            that are not "auto" are kept; options of stages leave the layout to the planner of
            pipelines.
        shards: What the user has fixed of the shards; None for nothing.

    Raises:
        OptionError: The model or an option is wrong, or no layout fits in memory.
    """
    cluster, fixed = machine.cluster, shards or FixedShards()
    known = {"costs": costs, "device_memory": device_memory}
    if _leaves_nothing(options):
        alone = plan(model, example, cluster, state=state, **known, **options)  # type: ignore[arg-type]
        return PlanWithLayout(plan=alone, search=None, machine=machine)
    checked = {
        name: None if value == AUTO and name != "pipeline" else value
        for name, value in options.items()
    }

    def read(target: nn.Module, on: Cluster) -> Request:
        return read_request(target, example, on, state=state, **known, **checked)  # type: ignore[arg-type]

    request = read(model, cluster)
    found = _Candidates(
        machine=machine, options=options, fixed=fixed,
        precision=fixed.precision or _precision(request.state),
        variants={1: Variant(model=model, cluster=cluster, read=read, messages={})},
        requests={1: request},
    )  # fmt: skip
    limit = request.memory_bytes or cluster.device.memory_bytes
    first = None if fixed.tensor else found.search_whole(limit)
    if not (unsplit := why_whole(first) if first else ""):
        split, unsplit = _variants(
            model, example, request, machine=machine, options=options, fixed=fixed, read=read
        )
        if split:
            found.add(split)
            first = None
    search, chosen = found.plan_in(limit, state, first)
    return PlanWithLayout(plan=chosen, search=search, machine=machine, unsplit=unsplit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """Model with whole layers, and with layers that are split, whose layouts are searched together.

    Attributes:
        machine: Cluster to plan for, and its speeds.
        options: Options of the user.
        fixed: Choices of the user that limit the shards of a layout.
        precision: Bytes of each parameter element.
        variants: The model by the number of ranks that split a layer.
        requests: Source of the costs by this number.
    """

    machine: Machine
    options: dict[str, Any]
    fixed: FixedShards
    precision: Precision
    variants: dict[int, Variant]
    requests: dict[int, Request]

    def add(self, split: Mapping[int, Variant]) -> None:
        """Add models whose layers are split."""
        self.variants.update(split)
        self.requests.update({degree: each.request() for degree, each in split.items()})

    def search(self, memory_bytes: int | None) -> LayoutSearch:
        """Return the fastest layouts in so many bytes of device memory; None for any number."""
        return _search(
            self.requests, self.variants, machine=self.machine, options=self.options,
            fixed=self.fixed, precision=self.precision, memory_bytes=memory_bytes,
        )  # fmt: skip

    def search_whole(self, memory_bytes: int | None) -> LayoutSearch | None:
        """Return the search before any split is added; None if no layout fits."""
        try:
            return self.search(memory_bytes)
        except PlanError:
            return None

    def plan_in(
        self, memory_bytes: int | None, state: StateBytes, first: LayoutSearch | None
    ) -> tuple[LayoutSearch, Plan]:
        """Return the search of a layout whose stages fit in memory, and the plan of these stages.

        Args:
            memory_bytes: Bytes of device memory; None if unknown.
            state: Bytes of state of each parameter element.
            first: Search in this memory, if it is known.

        Raises:
            PlanMemoryError: No layout fits.
        """
        limit = memory_bytes
        for tries_left in reversed(range(_TRIES)):
            search, first = first or self.search(limit), None
            layout = search.best.layout
            variant, request = self.variants[layout.tensor], self.requests[layout.tensor]
            names = _names(request, self.options, layout)
            try:
                with _checkpoints(variant.model, names):
                    stages = _stages(
                        variant, layout, self.machine, self.options, self.precision, state
                    )
            except PlanMemoryError:
                # The planner of stages captures checkpoints, and knows temporary memory exactly.
                if limit is None or not tries_left:
                    raise
                limit = int(_LESS * limit)
            else:
                break
        return search, _with_layout(stages, layout, names)


def _variants(
    model: nn.Module, example: Example | Batch, request: Request, *, machine: Machine,
    options: dict[str, Any], fixed: FixedShards, read: Callable[[nn.Module, Cluster], Request],
) -> tuple[dict[int, Variant], str]:  # fmt: skip
    """Return the model for each number of ranks that split its layers, and why there are none.

    Layers are not split if the costs are measured, since a part of a model has no values to measure
    with, or if the user has fixed the number of replicas, which leaves no ranks for it.
    """
    if fixed.tensor == 1 or _fixed(options, "data_parallel_degree") is not None:
        return {}, ""
    if request.sampler.measures:
        return {}, "the costs of the whole model are measured"
    cluster, pipeline = machine.cluster, _fixed(options, "pipeline_parallel_degree") or 1
    degrees = [
        each
        for each in divisors(cluster.ranks_per_host)
        if each > 1 and fixed.tensor in (None, each) and cluster.size // each % pipeline == 0
    ]
    return split_variants(model, Batch.of(example), cluster, degrees, read)


def _stages(
    variant: Variant, layout: Layout, machine: Machine, options: dict[str, Any],
    precision: Precision, state: StateBytes,
) -> Plan:  # fmt: skip
    """Return the plan of the stages of a layout.

    Raises:
        PlanMemoryError: The stages do not fit in memory.
    """
    chosen = {
        name: None if value == AUTO and name != "pipeline" else value
        for name, value in {"auto_partition": True, "pipeline": AUTO, **options}.items()
    }
    request = variant.request()
    chosen |= _chosen(layout, chosen)
    chosen["state"] = _state(layout, state, precision, request)
    costs = LayoutCosts(request.sampler, layout, machine, variant.messages, request.batch_size)
    return plan_of(variant.model, replace(request, sampler=costs), chosen)


def _names(request: Request, options: dict[str, Any], layout: Layout) -> tuple[str, ...]:
    """Return the names of the modules that a layout checkpoints."""
    if layout.checkpointing == "none":
        return ()
    graph, costs = request.sampler.at(_smallest(request, options), frozenset())
    return checkpointed(graph, costs, layout.checkpointing)


@contextmanager
def _checkpoints(model: nn.Module, names: tuple[str, ...]) -> Iterator[None]:
    """Checkpoint activations of some modules; undo this if the block raises an error."""
    modules = [model.get_submodule(name) for name in names]
    changed = [module for module in modules if not is_checkpointed(module)]
    for module in changed:
        checkpoint_forward(module)
    try:
        yield
    except BaseException:
        for module in changed:
            plain_forward(module)
        raise


def _chosen(layout: Layout, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the planner of stages for a layout."""
    chosen = {
        **options,
        "pipeline_parallel_degree": layout.pipeline,
        "data_parallel_degree": None,
        "microbatches": layout.num_microbatches,
        "overlaps_sums": layout.sharding == "none",
    }
    if layout.reduction == "microbatch" and options.get("pipeline", AUTO) == AUTO:
        chosen["pipeline"] = _IN_ONE_PART
    return chosen


def _with_layout(found: Plan, layout: Layout, names: tuple[str, ...]) -> Plan:
    """Return a plan of stages with a layout's shards, and with the modules to checkpoint.

    Args:
        found: Plan of the stages.
        layout: The layout.
        names: Names of the modules whose activations are computed again.
    """
    is_sharded = layout.sharding != "none"
    is_often = is_sharded and layout.reduction == "microbatch"
    changed = replace(
        found,
        sharding=layout.sharding,
        shard_degree=layout.shard_degree if layout.is_hybrid else None,
        gradient_reduction="microbatch" if is_often else "step",
        tensor_parallel_degree=layout.tensor,
        offload_activations=layout.offload,
        checkpointed=names,
    )
    problem, forecast = found.problem, found.forecast
    assert problem is not None
    assert forecast is not None
    return Plan.of(replace(changed, forecast=replace(forecast, basis=changed.basis)), problem)


def _leaves_nothing(options: dict[str, Any]) -> bool:
    """Return True if options of stages are set, which only the planner of pipelines knows."""
    is_by_hand = options.get("auto_partition", True) is not True
    is_untried = options.get("pipeline", AUTO) not in (AUTO, *SCHEDULES_TRIED)
    return is_by_hand or is_untried or any(options.get(name) is not None for name in _OF_STAGES)


def _search(
    requests: Mapping[int, Request], variants: Mapping[int, Variant], *, machine: Machine,
    options: dict[str, Any], fixed: FixedShards, precision: Precision, memory_bytes: int | None,
) -> LayoutSearch:  # fmt: skip
    request = requests[1]
    counts = (_smallest(request, options), _fixed(options, "microbatches") or 1)
    model = _layers(requests, variants, counts, machine)
    size, data = machine.cluster.size, _fixed(options, "data_parallel_degree")
    degree = _fixed(options, "pipeline_parallel_degree") or (size // data if data else None)
    schedule = options.get("pipeline", AUTO)
    if schedule == AUTO and fixed.reduction == "microbatch":
        schedule = _IN_ONE_PART
    needs = TrainingNeeds(
        batch_per_replica=request.batch_size,
        precision=precision,
        memory_bytes=memory_bytes,
        reduction=fixed.reduction,
        pipeline=degree,
        num_microbatches=_fixed(options, "microbatches"),
        shard_degree=fixed.shard_degree,
        schedule=None if schedule == AUTO or degree == 1 else schedule,
        virtual_stages=None if degree == 1 else options.get("virtual_stages"),
        tensor=fixed.tensor,
        offload=fixed.offload if machine.can_offload else False,
        only_shards=fixed.only_shards,
    )
    return find_layout(model, machine, needs)


def _layers(
    requests: Mapping[int, Request], variants: Mapping[int, Variant], counts: tuple[int, int],
    machine: Machine,
) -> LayerModel:  # fmt: skip
    """Return the layers of a model, whole and split.

    Args:
        requests: Source of the costs, for each number of ranks that split a layer.
        variants: The model for each such number.
        counts: Numbers of microbatches for which costs are taken: the largest and the smallest.
        machine: Machine of the layers.
    """
    whole = layers_between(*_sizes(requests[1], counts), machine)
    splits = []
    for degree, request in requests.items():
        if degree == 1:
            continue
        try:
            small, large = _sizes(request, counts)
        except (CaptureError, SizeError):  # the whole model could be recorded nevertheless
            continue
        messages = variants[degree].messages
        splits.append(SplitCosts(degree=degree, small=small, large=large, messages=messages))
    return with_splits(whole, splits, machine)


def _sizes(request: Request, counts: tuple[int, int]) -> tuple[MicrobatchCosts, MicrobatchCosts]:
    """Return the costs of the smallest and of the largest microbatch."""
    return _captured(request, counts[0]), _captured(request, counts[1])


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


def _state(layout: Layout, state: StateBytes, precision: Precision, request: Request) -> StateBytes:
    """Return the bytes that a layout keeps of each parameter element, for the planner of stages."""
    if layout.sharding == "none":
        return state
    needs = TrainingNeeds(
        batch_per_replica=request.batch_size, precision=precision, reduction="auto"
    )
    total = state_bytes_per_element(layout, needs)
    weight = min(total, state.weight)
    gradient = min(total - weight, state.gradient)
    return StateBytes(
        weight=weight, gradient=gradient, optimizer=max(0.0, total - weight - gradient)
    )
