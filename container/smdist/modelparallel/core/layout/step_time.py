# SPDX-License-Identifier: Apache-2.0
"""Seconds of one step of a layout: stages with their messages, simulated as a pipeline.

What overlaps follows the runtime. Gathers of a layer's shards overlap with the computation of the
layer before it, on a device with streams (`Machine.overlaps`). All-reduces of tensor parallelism
overlap with nothing. Gradients are summed during the last backward pass of a stage, while other
stages compute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.cost import Link, NodeCost
from smdist.modelparallel.core.layout.communication import (
    CollectiveGroup,
    all_reduce_seconds,
    group,
    one_way_seconds,
)
from smdist.modelparallel.core.layout.degrees import Layout
from smdist.modelparallel.core.layout.layer_costs import LayerCost
from smdist.modelparallel.core.layout.layout_memory import keeps_gathered, reduces_at_end
from smdist.modelparallel.core.layout.machine_speed import Machine
from smdist.modelparallel.core.layout.prediction import TimeParts
from smdist.modelparallel.core.layout.training_needs import TrainingNeeds
from smdist.modelparallel.core.schedule import SCHEDULES, make_schedule
from smdist.modelparallel.core.simulate import (
    StepClock,
    StepEnds,
    end_bucket_bytes,
    exposed_seconds,
)

_SPLIT_OVERHEAD = 0.1  # fraction of a backward pass in two parts, as in the planner of pipelines
# Adam reads or writes 18 values for each parameter, kernel by kernel, as torch does by default:
# first moment 3, second moment 2 + 3, its root, division and sum 2 each, weight 4. The state has 4.
_OPTIMIZER_TRAFFIC = 18 / 4
_COPY_TRAFFIC = 2.0  # a copy reads and writes
_SUM_TRAFFIC = 3.0  # a gradient is added to that of earlier microbatches
# Processor time of a rank for each byte that is averaged: benchmarks/ddp_step, on 4 hosts.
_ENGINE_SECONDS = 2e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Seconds of one stage, for one microbatch and at the end of a step.

    Attributes:
        forward, backward: Both passes of one microbatch with all that they wait for.
        computed, recomputed, tensor, shards, offload: Parts of the two passes.
        hidden: Messages of one microbatch that computation hides.
        once: Gathers that a step has once, for its first microbatch.
        reduced: Sum of gradients at the end of the step.
        exposed: Part of this sum that follows the last backward pass.
        updated: Update of the weights.
    """

    forward: float
    backward: float
    computed: float
    recomputed: float
    tensor: float
    shards: float
    offload: float
    hidden: float
    once: float
    reduced: float
    exposed: float
    updated: float

    @property
    def seconds(self) -> float:
        """Seconds of both passes of one microbatch."""
        return self.forward + self.backward


def stage_time(
    machine: Machine, costs: Sequence[LayerCost], layout: Layout, needs: TrainingNeeds
) -> StageTime:
    """Return the seconds of one stage.

    Args:
        machine: Machine that runs the layout.
        costs: Costs of the stage's layers for one microbatch.
        layout: The layout.
        needs: Precision of the training, and when it reduces gradients.
    """
    forward = backward = shards = offload = hidden = once = 0.0
    gathers_often = layout.sharding == "full" and not keeps_gathered(layout)
    for cost, many in _repeated(costs):
        gather, scatter = _shard_seconds(machine, cost.num_parameters, layout, needs)
        ahead, behind = cost.ahead_seconds, cost.behind_seconds
        if gathers_often:
            spoken = gather + (0.0 if reduces_at_end(layout, needs) else scatter)
            late = _exposed(machine, gather, ahead), _exposed(machine, spoken, behind)
            forward, backward = forward + many * late[0], backward + many * late[1]
            shards += many * sum(late)
            hidden += many * (gather + spoken - sum(late))
        elif gather:
            once += many * _exposed(machine, gather, ahead)
        copies = [max(0.0, cost.copy_seconds / 2 - time) for time in (ahead, behind)]
        forward += many * (ahead + copies[0])
        backward += many * (behind + copies[1])
        offload += many * sum(copies)
        hidden += many * (cost.copy_seconds - sum(copies))
    sizes = [cost.num_parameters for cost in costs]
    added = _added(machine, sum(sizes), layout, needs)
    reduced = _reduced(machine, sum(sizes), layout, needs)
    return StageTime(
        forward=forward,
        backward=backward + added,
        computed=sum(cost.forward_seconds + cost.backward_seconds for cost in costs) + added,
        recomputed=sum(cost.again_seconds for cost in costs),
        tensor=sum(cost.message_seconds + cost.again_message_seconds for cost in costs),
        shards=shards,
        offload=offload,
        hidden=hidden,
        once=once,
        reduced=reduced,
        exposed=_after_backward(machine, reduced, backward + added, sizes, layout, needs),
        updated=_updated(machine, sum(sizes), layout, needs),
    )


def _exposed(machine: Machine, message: float, computation: float) -> float:
    """Return the seconds of a message of shards that no computation hides."""
    return max(0.0, message - computation) if machine.overlaps else message


def _repeated(costs: Sequence[LayerCost]) -> list[tuple[LayerCost, int]]:
    """Return each different object among the costs, and how often it is there."""
    found: dict[int, tuple[LayerCost, int]] = {}
    for cost in costs:
        _, many = found.get(id(cost), (cost, 0))
        found[id(cost)] = cost, many + 1
    return list(found.values())


def _shard_seconds(
    machine: Machine, elements: float, layout: Layout, needs: TrainingNeeds
) -> tuple[float, float]:
    """Return the seconds to gather the shards of a layer, and to reduce its gradients to shards."""
    if layout.sharding == "none" or layout.shard_degree == 1:
        return 0.0, 0.0
    ranks = group(machine, layout.shard_degree, layout.pipeline * layout.tensor)
    gathered, summed = elements * needs.precision.gathered, elements * needs.precision.sum
    return _sent_and_copied(machine, gathered, ranks), _sent_and_copied(machine, summed, ranks)


def _sent_and_copied(machine: Machine, num_bytes: float, ranks: CollectiveGroup) -> float:
    """Return the seconds of a gather or reduction of shards, and of the copy of the whole value."""
    if ranks.size == 1:
        return 0.0
    copied = _touched(machine, _COPY_TRAFFIC * num_bytes)
    return one_way_seconds(machine, num_bytes, ranks) + copied


def _touched(machine: Machine, num_bytes: float) -> float:
    """Return the seconds in which a device reads or writes bytes of its memory."""
    return num_bytes / (machine.bytes_per_second * machine.memory)


def _added(machine: Machine, elements: float, layout: Layout, needs: TrainingNeeds) -> float:
    """Return the seconds in which one microbatch adds its gradients to those before it.

    The first microbatch of a step adds nothing; the mean of all microbatches is returned.
    """
    later = (layout.num_microbatches - 1) / layout.num_microbatches
    if layout.sharding == "none":
        held = elements * needs.precision.gradient
    else:
        held = elements * needs.precision.sum
        held /= 1 if reduces_at_end(layout, needs) else layout.shard_degree
    return later * _touched(machine, _SUM_TRAFFIC * held)


def _reduced(machine: Machine, elements: float, layout: Layout, needs: TrainingNeeds) -> float:
    """Return the seconds in which a stage sums its gradients at the end of a step."""
    stride = layout.pipeline * layout.tensor
    precision = needs.precision
    if layout.sharding == "none":
        ranks = group(machine, layout.data, stride)
        num_bytes = elements * precision.gradient
        copied = _touched(machine, _COPY_TRAFFIC * num_bytes) if layout.data > 1 else 0.0
        return all_reduce_seconds(machine, num_bytes, ranks) + copied
    shards = group(machine, layout.shard_degree, stride)
    copies = group(machine, layout.data // layout.shard_degree, stride * layout.shard_degree)
    seconds = all_reduce_seconds(machine, elements * precision.sum / layout.shard_degree, copies)
    if reduces_at_end(layout, needs):
        seconds += _sent_and_copied(machine, elements * precision.sum, shards)
    return seconds


def _after_backward(
    machine: Machine, reduced: float, backward: float, elements: Sequence[float], layout: Layout,
    needs: TrainingNeeds,
) -> float:  # fmt: skip
    """Return the seconds of a stage's sum of gradients that follow its last backward pass.

    Args:
        machine: Machine that runs the layout.
        reduced: Seconds of the whole sum.
        backward: Seconds of the backward pass.
        elements: Number of gradients of each layer.
        layout: The layout.
        needs: Precision of the training, and when it reduces gradients.
    """
    if layout.sharding == "none":
        sizes = [round(each * needs.precision.gradient) for each in elements if each]
        if SCHEDULES[layout.schedule].splits_backward or layout.data == 1 or not sizes:
            return reduced
        ranks = group(machine, layout.data, layout.pipeline * layout.tensor)
        num_bytes = sum(sizes)
        first, last = (end_bucket_bytes(num_bytes, sizes[at]) for at in (-1, 0))
        whole, of_last = (all_reduce_seconds(machine, n, ranks) for n in (num_bytes, last))
        if not machine.overlaps:  # the engine takes processor time from the backward pass
            of_last = min(whole, of_last + _ENGINE_SECONDS * num_bytes)
        return reduced - whole + exposed_seconds(whole, of_last, first / num_bytes, backward)
    often = layout.reduces_often if needs.reduction == "auto" else needs.reduction != "step"
    if often and layout.pipeline == 1:
        return max(0.0, reduced - backward)
    return reduced


def _updated(machine: Machine, elements: float, layout: Layout, needs: TrainingNeeds) -> float:
    """Return the seconds in which a rank updates the weights of a stage."""
    precision = needs.precision
    if layout.sharding == "none":
        touched = elements * (precision.weight + precision.gradient + precision.optimizer)
    else:
        touched = elements * (precision.shard + precision.sum) / layout.shard_degree
    return _touched(machine, _OPTIMIZER_TRAFFIC * touched)


def step_parts(
    machine: Machine, stages: Sequence[StageTime], sent_bytes: Sequence[int], layout: Layout
) -> TimeParts:
    """Return the seconds of a step by part.

    Args:
        machine: Machine that runs the layout.
        stages: Seconds of each stage.
        sent_bytes: Bytes that each stage but the last sends to the next one, for one microbatch.
        layout: The layout.
    """
    count = layout.num_microbatches
    if layout.pipeline == 1:
        (stage,) = stages
        covered = stage.reduced - stage.exposed
        wait = stage.exposed + stage.once
        return _parts(stage, count, bubble=0.0, gradients=wait, more_hidden=covered)
    pipeline, step = _pipeline_seconds(machine, stages, sent_bytes, layout)
    ranks = [
        _joined([stages[each] for each in stages_of(rank, layout)])
        for rank in range(layout.pipeline)
    ]
    joined = max(ranks, key=lambda each: each.seconds)
    once = max(stage.once for stage in stages)
    step += max(0.0, count * joined.seconds - pipeline)  # an extrapolation may be too short
    pipeline = max(pipeline, count * joined.seconds)
    bubble = pipeline - count * joined.seconds
    return _parts(joined, count, bubble=bubble, gradients=step - pipeline + once, more_hidden=0.0)


def stages_of(rank: int, layout: Layout) -> tuple[int, ...]:
    """Return the stages of one rank of a pipeline."""
    num_stages = layout.pipeline * layout.virtual_stages
    if SCHEDULES[layout.schedule].is_v:
        return (rank, num_stages - 1 - rank)
    return tuple(range(rank, num_stages, layout.pipeline))


def _joined(stages: Sequence[StageTime]) -> StageTime:
    """Return the sums of several stages of one rank."""
    names = StageTime.__dataclass_fields__
    return StageTime(**{name: sum(getattr(each, name) for each in stages) for name in names})


def _parts(
    stage: StageTime, count: int, *, bubble: float, gradients: float, more_hidden: float
) -> TimeParts:
    return TimeParts(
        compute=count * stage.computed,
        recompute=count * stage.recomputed,
        bubble=bubble,
        tensor=count * stage.tensor,
        shards=count * stage.shards,
        gradients=gradients,
        offload=count * stage.offload,
        optimizer=stage.updated,
        hidden=count * stage.hidden + more_hidden,
    )


_EVENTS = 8_000  # actions of a step above which its length is extrapolated


def _pipeline_seconds(
    machine: Machine, stages: Sequence[StageTime], sent_bytes: Sequence[int], layout: Layout
) -> tuple[float, float]:
    """Return the seconds of the pipeline, and of the step with the sums of gradients.

    A long step is simulated with fewer microbatches, twice; each further microbatch takes the
    difference, since a pipeline in its steady state repeats itself.
    """
    count, period = layout.num_microbatches, layout.pipeline
    least = 2 * period
    if 2 * len(stages) * count <= _EVENTS or count <= 2 * least:
        return _simulated(machine, stages, sent_bytes, layout, count)
    short = least + count % period
    first = _simulated(machine, stages, sent_bytes, layout, short)
    second = _simulated(machine, stages, sent_bytes, layout, short + period)
    more = (count - short) / period
    one, two = (a + (b - a) * more for a, b in zip(first, second, strict=True))
    return one, two


def _simulated(
    machine: Machine, stages: Sequence[StageTime], sent_bytes: Sequence[int], layout: Layout,
    count: int,
) -> tuple[float, float]:  # fmt: skip
    clock = _clock(layout.schedule, layout.pipeline, count, layout.virtual_stages)
    ends = _ends(
        clock, tuple(each.forward for each in stages), tuple(each.backward for each in stages),
        tuple(sent_bytes), pipeline_link(machine.cluster, layout),
    )  # fmt: skip
    return ends.pipeline_seconds, ends.step_seconds([each.exposed for each in stages])


@lru_cache(maxsize=1024)  # layouts that differ in their shards often have the same passes
def _ends(
    clock: StepClock, forward: tuple[float, ...], backward: tuple[float, ...],
    sent_bytes: tuple[int, ...], link: Callable[[int, int], Link],
) -> StepEnds:  # fmt: skip
    half = (1 + _SPLIT_OVERHEAD if clock.splits_backward else 1.0) / 2
    costs = [
        NodeCost(
            forward_seconds=ahead,
            input_gradient_seconds=behind * half,
            weight_gradient_seconds=behind * half,
        )
        for ahead, behind in zip(forward, backward, strict=True)
    ]
    return clock.ends(costs, sent_bytes, link)


@lru_cache(maxsize=16)
def _clock(name: str, ranks: int, microbatches: int, virtual: int) -> StepClock:
    return StepClock(
        make_schedule(name, num_ranks=ranks, num_microbatches=microbatches, virtual_stages=virtual)
    )


def pipeline_link(cluster: Cluster, layout: Layout) -> Callable[[int, int], Link]:
    """Return a function that gives the slowest link between two ranks of any pipeline."""
    pipelines = min(layout.data, cluster.ranks_per_host)
    return _slowest_link(cluster, layout.tensor, layout.pipeline * layout.tensor, pipelines)


@lru_cache(maxsize=64)
def _slowest_link(
    cluster: Cluster, tensor: int, width: int, pipelines: int
) -> Callable[[int, int], Link]:
    @cache
    def link(rank: int, other: int) -> Link:
        if rank == other:
            return Link()
        found = [
            cluster.link(start + rank * tensor, start + other * tensor)
            for start in range(0, pipelines * width, width)
        ]
        return max(found, key=lambda each: (1 / each.bytes_per_second, each.latency_seconds))

    return link
