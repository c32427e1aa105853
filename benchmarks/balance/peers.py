# SPDX-License-Identifier: Apache-2.0
"""Partitioning methods of other projects, implemented from their publications.

Each takes a graph with its costs and returns the stage of each unit, in the order of execution.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import inf

from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import placed_units

Stages = Mapping[str, int]


def equal_layers(graph: Graph, _: Costs, num_stages: int) -> Stages:
    """Put the same number of units in each stage, one more in the first: torchtitan's method."""
    names = [unit.name for unit in placed_units(graph)]
    each, extra = divmod(len(names), num_stages)
    ends = accumulate(each + (stage < extra) for stage in range(num_stages))
    return _stages(names, list(ends))


def by_parameters(graph: Graph, _: Costs, num_stages: int) -> Stages:
    """Minimise the largest number of parameters of a stage: DeepSpeed's search over prefix sums.

    A binary search finds the limit; a probe fills each stage up to the last unit that fits.
    """
    units = placed_units(graph)
    sizes = [sum(graph.parameter[p].num_elements for p in unit.parameters) for unit in units]
    sums = [0, *accumulate(sizes)]
    low, high = -(-sums[-1] // num_stages), sums[-1]
    low = max(low, max(sizes))
    while low < high:
        middle = (low + high) // 2
        if _fill(sums, num_stages, middle)[-1] == len(units):
            high = middle
        else:
            low = middle + 1
    return _stages([unit.name for unit in units], _fill(sums, num_stages, high))


def _fill(sums: Sequence[int], num_stages: int, limit: int) -> list[int]:
    """Return ends of stages filled to the limit, leaving at least one unit for each later one."""
    size, ends, start = len(sums) - 1, [], 0
    for stage in range(num_stages):
        fits = bisect_right(sums, sums[start] + limit) - 1
        start = max(start + 1, min(fits, size - (num_stages - 1 - stage)))
        ends.append(start)
    return ends


def by_blocks(graph: Graph, costs: Costs, num_stages: int) -> Stages:
    """Balance the times of stages: torchgpipe's method, after Bárány and Grinberg.

    From an initial partition, units move from the largest stage towards the nearest small
    one, until the largest stage is at most the smallest plus the largest unit.
    """
    names = [unit.name for unit in placed_units(graph)]
    sizes = [costs.of(name).seconds for name in names]
    ends = [(stage + 1) * len(names) // num_stages for stage in range(num_stages)]
    for _ in range(100 * len(names)):
        sums = _sums(sizes, ends)
        if max(sums) <= min(sums) + max(sizes):
            break
        moved = _shift(ends, sums.index(max(sums)), sums)
        if moved == ends:
            break
        ends = moved
    return _stages(names, ends)


def _shift(ends: list[int], full: int, sums: Sequence[float]) -> list[int]:
    """Move one unit over each boundary between the fullest stage and the nearest below average."""
    mean = sum(sums) / len(sums)
    light = min(
        (stage for stage, size in enumerate(sums) if size <= mean and stage != full),
        key=lambda stage: (abs(stage - full), sums[stage]),
        default=full,
    )
    step = -1 if light > full else 1
    between = range(full, light) if light > full else range(light, full)
    return [end + step * (at in between) for at, end in enumerate(ends)]


def _sums(sizes: Sequence[float], ends: Sequence[int]) -> list[float]:
    return [sum(sizes[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


@dataclass(slots=True)
class Module:
    """Module of the tree: its units, and its submodules in the order of execution."""

    name: str
    units: list[str] = field(default_factory=list)
    inner: dict[str, Module] = field(default_factory=dict)
    cost: float = 0.0


def by_tree(graph: Graph, costs: Costs, num_stages: int) -> Stages:
    """Assign stages to the modules of the tree: SageMaker's method, from its published description.

    The submodules of a module are divided into at most as many runs of neighbours as the module has
    stages, such that the largest cost of a run is least. Each run gets one stage, and each further
    stage is assigned to the run with the most cost per stage (D'Hondt). Runs with several stages
    are divided in the same way.
    """
    root = _tree(graph, costs)
    while len(root.inner) == 1:
        root = next(iter(root.inner.values()))
    stage_of: dict[str, int] = {}
    _deal([root], range(num_stages), stage_of)
    ordered = {unit.name: stage_of[unit.name] for unit in placed_units(graph)}
    return _without_gaps(_in_order(ordered), num_stages)


def _tree(graph: Graph, costs: Costs) -> Module:
    """Return the tree of modules with costs: 0.2 x memory + 0.8 x time, as with `optimize="speed"`.

    Memory and time are shares of those of the whole model.
    """
    units = placed_units(graph)
    memory = {u.name: sum(graph.parameter[p].num_bytes for p in u.parameters) for u in units}
    seconds = {u.name: costs.of(u.name).seconds for u in units}
    all_memory, all_seconds = sum(memory.values()) or 1, sum(seconds.values()) or 1.0
    root = Module("")
    for unit in units:
        at = root
        cost = 0.2 * memory[unit.name] / all_memory + 0.8 * seconds[unit.name] / all_seconds
        at.cost += cost
        for part in unit.name.split("."):
            at = at.inner.setdefault(part, Module(part))
            at.cost += cost
        at.units.append(unit.name)
    return root


def _deal(modules: Sequence[Module], stages: range, stage_of: dict[str, int]) -> None:
    if len(modules) == 1 and len(stages) > 1 and modules[0].inner:
        own = [Module("", units=modules[0].units)] if modules[0].units else []
        _deal([*own, *modules[0].inner.values()], stages, stage_of)
        return
    if len(modules) == 1 or len(stages) == 1:
        for module in modules:
            _assign(module, stages[0], stage_of)
        return
    runs = _runs(modules, min(len(stages), len(modules)))
    first = stages[0]
    for run, seats in zip(runs, _seats(runs, len(stages)), strict=True):
        if not seats:
            _deal(run, range(stages[0], stages[0] + 1), stage_of)
            continue
        _deal(run, range(first, first + seats), stage_of)
        first += seats


def _assign(module: Module, stage: int, stage_of: dict[str, int]) -> None:
    stage_of.update(dict.fromkeys(module.units, stage))
    for inner in module.inner.values():
        _assign(inner, stage, stage_of)


def _runs(modules: Sequence[Module], count: int) -> list[Sequence[Module]]:
    """Return the division into `count` runs of neighbours whose largest cost is least."""
    sums = [0.0, *accumulate(module.cost for module in modules)]
    best = [(0.0, [0])] + [(inf, [0])] * len(modules)
    for _ in range(count):
        best = [(inf, [0])] + [
            min(
                (max(best[start][0], sums[end] - sums[start]), [*best[start][1], end])
                for start in range(end)
            )
            for end in range(1, len(modules) + 1)
        ]
    ends = best[-1][1]
    return [modules[a:b] for a, b in pairwise(ends)]


def _seats(runs: Sequence[Sequence[Module]], count: int) -> list[int]:
    sums = [sum(module.cost for module in run) for run in runs]
    seats = [0] * len(runs)
    for _ in range(count):
        shares = [cost / (held + 1) for cost, held in zip(sums, seats, strict=True)]
        seats[shares.index(max(shares))] += 1
    return seats


def _in_order(stage_of: Stages) -> Stages:
    """Return stages that never decrease from unit to unit, because data only move forward."""
    return dict(zip(stage_of, accumulate(stage_of.values(), max), strict=True))


def _without_gaps(stage_of: Stages, num_stages: int) -> Stages:
    """Fill empty stages: each takes the first unit of the next stage, or the last unit."""
    names, stages = list(stage_of), list(stage_of.values())
    for at in range(len(stages)):
        stages[at] = min(stages[at], (stages[at - 1] if at else -1) + 1)
    for back in range(num_stages):
        at = len(stages) - 1 - back
        stages[at] = max(stages[at], num_stages - 1 - back)
    return dict(zip(names, stages, strict=True))


def _stages(names: Sequence[str], ends: Sequence[int]) -> Stages:
    return {name: bisect_right(ends, at) for at, name in enumerate(names)}


Peer = Callable[[Graph, Costs, int], Stages]
PEERS: Mapping[str, Peer] = {
    "equal layers": equal_layers,
    "parameters": by_parameters,
    "torchgpipe": by_blocks,
    "SMP-like tree": by_tree,
}
