# SPDX-License-Identifier: Apache-2.0
"""All layouts that a search tries, for one model, cluster and training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Final

from smdist.modelparallel.core.layout.degrees import Layout
from smdist.modelparallel.core.layout.layer_model import LayerModel
from smdist.modelparallel.core.layout.machine_speed import Machine
from smdist.modelparallel.core.layout.training_needs import (
    CHECKPOINTINGS,
    SCHEDULES_TRIED,
    SHARDINGS,
    TrainingNeeds,
)
from smdist.modelparallel.core.plan.plan_check import divisors
from smdist.modelparallel.core.schedule import SCHEDULES

_VIRTUAL: Final = (2, 4)  # stages on each rank that are tried, for schedules that allow several


def bases(
    model: LayerModel, machine: Machine, needs: TrainingNeeds, *, least_tensor: int = 1
) -> Iterator[Layout]:
    """Yield all layouts without sharding; `sharded` adds the shardings of each.

    Args:
        model: Layers of the model.
        machine: Cluster and its efficiency.
        needs: Batch and fixed options of the training.
        least_tensor: Smallest number of ranks that split a layer.
    """
    cluster = machine.cluster
    for tensor in _chosen(needs.tensor, divisors(cluster.ranks_per_host)):
        if tensor < least_tensor or not model.can_split(tensor) or cluster.ranks_per_host % tensor:
            continue
        num_layers = len(model.layers_on(tensor))
        for pipeline in _chosen(needs.pipeline, divisors(cluster.size // tensor)):
            if pipeline > num_layers or cluster.size % (tensor * pipeline):
                continue
            data = cluster.size // (tensor * pipeline)
            for microbatch, count in _microbatches(needs, data):
                base = Layout(
                    data=data, pipeline=pipeline, tensor=tensor,
                    microbatch=microbatch, num_microbatches=count,
                    reduction="step" if needs.reduction == "auto" else needs.reduction,
                )  # fmt: skip
                yield from _with_options(base, needs, num_layers)


def sharded(base: Layout, needs: TrainingNeeds) -> Iterator[Layout]:
    """Yield a layout with all its shardings, beginning with none."""
    least = 1 if needs.only_shards and base.data == 1 else 2
    for kind in SHARDINGS if needs.sharding is None else (needs.sharding,):
        if kind == "none":
            if needs.shard_degree in (None, 1) and not needs.only_shards:
                yield base
            continue
        for degree in _chosen(needs.shard_degree, divisors(base.data)):
            if degree >= least and base.data % degree == 0:
                layout = _replaced(base, sharding=kind, shard_degree=degree)
                yield layout
                often = _replaced(layout, reduction="microbatch")
                if needs.reduction == "auto" and often.reduces_often:
                    yield often


def _microbatches(needs: TrainingNeeds, data: int) -> Iterator[tuple[int, int]]:
    """Yield (samples of a microbatch, number of microbatches) of one replica."""
    batch = needs.batch_of(data)
    for size in divisors(batch) if batch else ():
        count = batch // size if batch else 0
        most = needs.most_microbatch or size
        is_wanted = needs.num_microbatches in (None, count)
        if needs.least_microbatch <= size <= most and is_wanted:
            yield size, count


def _with_options(base: Layout, needs: TrainingNeeds, num_layers: int) -> Iterator[Layout]:
    """Yield a layout with all schedules, checkpointings and offload."""
    checkpointings = CHECKPOINTINGS if needs.checkpointing is None else (needs.checkpointing,)
    offloads = (False, True) if needs.offload is None else (needs.offload,)
    for schedule, virtual in _schedules(base, needs):
        if base.pipeline * virtual > num_layers:
            continue
        for checkpointing, offload in product(checkpointings, offloads):
            yield _replaced(
                base, schedule=schedule, virtual_stages=virtual,
                checkpointing=checkpointing, offload=offload,
            )  # fmt: skip


def _schedules(base: Layout, needs: TrainingNeeds) -> Iterator[tuple[str, int]]:
    """Yield (schedule, stages on each rank) that a pipeline of this layout can have."""
    if base.pipeline == 1:
        if needs.schedule in (None, "1f1b") and needs.virtual_stages in (None, 1):
            yield "1f1b", 1
        return
    for name in SCHEDULES_TRIED if needs.schedule is None else (needs.schedule,):
        kind = SCHEDULES[name]
        if base.num_microbatches < base.pipeline * kind.least_microbatches_per_rank:
            continue
        for virtual in sorted({1, *_VIRTUAL, needs.virtual_stages or 1}):
            is_wanted = needs.virtual_stages in (None, virtual)
            if is_wanted and kind.takes_virtual_stages(virtual):
                yield name, virtual


def _chosen(fixed: int | None, choices: tuple[int, ...]) -> tuple[int, ...]:
    return choices if fixed is None else (fixed,)


def _replaced(layout: Layout, **changes: object) -> Layout:
    """Return a copy of a layout with other fields; faster than `dataclasses.replace`."""
    fields = {name: getattr(layout, name) for name in Layout.__dataclass_fields__}
    return Layout(**{**fields, **changes})
