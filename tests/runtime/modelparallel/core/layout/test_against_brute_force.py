# SPDX-License-Identifier: Apache-2.0
"""The search of layouts against every layout that there is, with every division into stages."""

import random
from itertools import combinations, product

import pytest

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.core.cluster import Cluster, Device
from smdist.modelparallel.core.cost import Link
from smdist.modelparallel.core.layout import (
    Layer,
    LayerModel,
    Layout,
    LayoutEvaluator,
    Machine,
    TrainingNeeds,
    find_fastest,
    find_layout,
)
from smdist.modelparallel.core.layout.layout_memory import in_flight, rank_memory, stage_memory
from smdist.modelparallel.core.layout.step_time import stage_time, stages_of, step_parts
from smdist.modelparallel.core.layout.training_needs import CHECKPOINTINGS
from smdist.modelparallel.core.plan_errors import PlanMemoryError

NEAR = 1.02  # the planner's time, relative to the best of all
MIB = 1 << 20
SCHEDULES = (
    ("1f1b", 1),
    ("interleaved_1f1b", 2),
    ("zero_bubble", 1),
    ("zero_bubble", 2),
    ("zero_bubble_v", 2),
)


class Case:
    """Random model on a random cluster of at most 8 ranks, with little or much memory."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.model = LayerModel(
            name="random",
            layers=tuple(self._layer(draw, at) for at in range(draw.randint(2, 4))),
        )
        hosts, ranks = draw.choice([(1, 2), (1, 4), (2, 2), (2, 4), (1, 8)])
        device = Device(
            name="NVIDIA A100",
            memory_bytes=draw.choice([60, 120, 300, 2000]) * MIB,
            flops_per_second=1e13,
            bytes_per_second=1e11,
        )
        cluster = Cluster(
            num_hosts=hosts,
            ranks_per_host=ranks,
            device=device,
            inside=Link(latency_seconds=1e-5, bytes_per_second=draw.choice([1e10, 1e11])),
            across=Link(latency_seconds=3e-5, bytes_per_second=draw.choice([1e8, 1e9])),
        )
        self.needs = TrainingNeeds(
            batch_per_replica=draw.choice([2, 4]),
            reduction=draw.choice(["step", "microbatch"]),
            offload=draw.choice([False, False, True]),
        )
        self.machine = Machine(cluster=cluster, overlaps=draw.choice([True, True, False]))

    @staticmethod
    def _layer(draw, at):
        saved = draw.randint(1, 20) * MIB
        return Layer(
            name=f"layer{at}",
            num_parameters=draw.randint(1, 40) * 100_000,
            forward_flops=draw.uniform(0.2, 5) * 1e10,
            moved_bytes=2.0 * saved,
            saved_bytes=saved,
            selective_bytes=saved / 2,
            selective_fraction=draw.choice([0.05, 0.5]),
            boundary_bytes=draw.uniform(0.1, 1) * MIB,
            fixed_saved_bytes=draw.choice([0, 0, draw.randint(1, 10) * MIB]),
            workspace_bytes=draw.choice([0, 0, draw.randint(1, 10) * MIB]),
            fixed_workspace_bytes=draw.choice([0, 0, draw.randint(1, 10) * MIB]),
            tensor_fraction=draw.choice([0.0, 0.9, 1.0]),
            tensor_messages=2,
        )


def every_layout(case):
    """Yield all layouts of the space, by degrees alone and not in the order of the search."""
    size, per_host = case.machine.cluster.size, case.machine.cluster.ranks_per_host
    batch, layers = case.needs.batch_per_replica, len(case.model.layers)
    can_split = any(layer.tensor_fraction for layer in case.model.layers)
    for tensor, pipeline, count in product(range(1, size + 1), range(1, size + 1), range(1, 9)):
        if size % (tensor * pipeline) or per_host % tensor or batch % count:
            continue
        if pipeline > layers or (tensor > 1 and not can_split):
            continue
        data = size // (tensor * pipeline)
        shards = [("none", 1)] + [
            (kind, degree)
            for kind in ("optimizer", "full")
            for degree in range(2, data + 1)
            if data % degree == 0
        ]
        ways = [way for way in SCHEDULES if pipeline > 1 or way == SCHEDULES[0]]
        ways = [way for way in ways if pipeline * way[1] <= layers]
        for (kind, degree), kept, way in product(shards, CHECKPOINTINGS, ways):
            yield Layout(
                data=data, pipeline=pipeline, tensor=tensor, sharding=kind, shard_degree=degree,
                checkpointing=kept, offload=case.needs.offload, microbatch=batch // count,
                num_microbatches=count, schedule=way[0], virtual_stages=way[1],
            )  # fmt: skip


def fastest(case):
    """Return the least seconds per sample of all layouts and divisions that fit; None if none."""
    evaluator = LayoutEvaluator(case.model, case.machine, case.needs)
    best = None
    for layout in every_layout(case):
        costs = evaluator.costs(layout)
        num_stages = layout.pipeline * layout.virtual_stages
        for cuts in combinations(range(1, len(costs)), num_stages - 1):
            parts = [costs[a:b] for a, b in zip((0, *cuts), (*cuts, len(costs)), strict=True)]
            try:
                seconds = seconds_of(case, layout, parts, cuts)
            except OptionError:
                continue  # the schedule needs more microbatches
            if seconds is not None and (best is None or seconds < best):
                best = seconds
    return best


def seconds_of(case, layout, parts, cuts):
    """Return the seconds per sample of one division, or None if it does not fit."""
    held = in_flight(layout)
    stages = [
        stage_memory(part, many, layout, case.needs) for part, many in zip(parts, held, strict=True)
    ]
    ranks = [
        rank_memory([stages[each] for each in stages_of(rank, layout)])
        for rank in range(layout.pipeline)
    ]
    if max(each.total for each in ranks) > case.machine.cluster.device.memory_bytes:
        return None
    times = [stage_time(case.machine, part, layout, case.needs) for part in parts]
    layers = case.model.layers
    sent = [round(layers[cut - 1].boundary_bytes * layout.microbatch) for cut in cuts]
    return step_parts(case.machine, times, sent, layout).step / layout.samples


def check(seed):
    """The search finds a layout within 2 % of the best, which fits, or there is none."""
    case, best = Case(seed), fastest(Case(seed))
    if best is None:
        with pytest.raises(PlanMemoryError):
            find_layout(case.model, case.machine, case.needs)
        return
    found = find_layout(case.model, case.machine, case.needs).best
    assert found == find_fastest(case.model, case.machine, case.needs).best

    assert found.memory.total <= case.machine.cluster.device.memory_bytes
    assert best * (1 - 1e-9) <= found.seconds_per_sample <= NEAR * best


@pytest.mark.parametrize("seed", range(30))
def test_a_sample_of_random_models(seed):
    """The search is within 2 % of the best of everything, and what it finds fits."""
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 200))
def test_random_models(seed):
    """The search is within 2 % of the best of everything, and what it finds fits."""
    check(seed)
