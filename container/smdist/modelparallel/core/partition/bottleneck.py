# SPDX-License-Identifier: Apache-2.0
"""Bottleneck unit, which alone limits a pipeline's speed, and the unit to open next."""

from __future__ import annotations

from collections.abc import Collection

from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.note import BOTTLENECK, Note
from smdist.modelparallel.core.partition.dynamic_programming import stages_needed
from smdist.modelparallel.core.partition.result import Bottleneck, Partition
from smdist.modelparallel.core.partition.scoring import Judge

WORTHWHILE = 1.02
"""Smallest speedup that counts: 2 % justifies another stage, or another opened unit."""


def bottleneck_of(judge: Judge, loads: tuple[float, ...]) -> Bottleneck | None:
    """Return the unit that takes more than an even share of the time, or None."""
    chain, aim = judge.chain, judge.aim
    end = len(chain.names)
    seconds = [chain.span(at, at + 1).seconds for at in range(end)]
    total, slowest = chain.span(0, end).seconds, max(seconds)
    if slowest * aim.num_ranks <= total * WORTHWHILE:
        return None
    sums = [0.0] * aim.num_ranks
    for rank, load in zip(aim.rank_of, loads, strict=True):
        sums[rank] += load
    needed = stages_needed(chain, aim, max(sums) * WORTHWHILE)
    return Bottleneck(
        unit=chain.names[seconds.index(slowest)],
        share=slowest / total,
        useful_stages=min(aim.num_ranks, needed),
    )


def advice(bottleneck: Bottleneck, num_ranks: int) -> Note:
    """Return a note with advice about a bottleneck."""
    useful, gain = bottleneck.useful_stages, 1 / bottleneck.share
    cap = f"more than {gain:.1f} times as fast as" if gain >= 1.05 else "noticeably faster than"
    told = (
        f"{bottleneck.unit} takes {bottleneck.share:.0%} of the time, so no pipeline is {cap} "
        "one rank"
    )
    hint = (
        "open it into finer units, or split it over several devices (a head: compute its loss in "
        "chunks)"
    )
    if useful >= num_ranks:
        return _note(bottleneck, f"{told}. {hint[0].upper()}{hint[1:]}")
    if useful == 1:
        same = f"; split as it can be now, {num_ranks} ranks are no faster than one. Use one rank"
    else:
        same = f", and {num_ranks} ranks are no faster than {useful}. Use {useful} ranks"
    return _note(bottleneck, f"{told}{same}, or {hint}")


def _note(bottleneck: Bottleneck, text: str) -> Note:
    return Note(BOTTLENECK, text, bottleneck.unit)


def next_to_open(
    graph: Graph, costs: Costs, partition: Partition, *, closed: Collection[str] = ()
) -> str | None:
    """Return the module that should become several units: the slowest one of the slowest stage.

    Among equally slow modules, the one next to the lighter neighbour stage wins.

    Args:
        graph: Graph that was partitioned.
        costs: Costs that the partition was made with.
        partition: Best partition so far.
        closed: Modules that cannot be opened, or that gave no gain when opened.

    Returns:
        The module's name, or None if less than 2 % can be gained.
    """
    if partition.imbalance <= WORTHWHILE:
        return None
    loads = partition.loads
    stage = loads.index(max(loads))
    names = [name for name in partition.stages[stage] if graph.node[name].module not in closed]
    if _load_at(loads, stage + 1) < _load_at(loads, stage - 1):
        names.reverse()
    best = max(names, key=lambda name: costs.of(name).seconds, default=None)
    return graph.node[best].module if best and costs.of(best).seconds else None


def _load_at(loads: tuple[float, ...], stage: int) -> float:
    return loads[stage] if 0 <= stage < len(loads) else float("inf")
