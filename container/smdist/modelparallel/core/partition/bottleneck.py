# SPDX-License-Identifier: Apache-2.0
"""Bottleneck of a pipeline: the unit (undivided module) that limits its speed.

The planner divides such a unit into the modules inside it, if that can make the pipeline faster.
"""

from __future__ import annotations

from collections.abc import Collection

from smdist.modelparallel.core.cost import Costs
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.note import BOTTLENECK, Note
from smdist.modelparallel.core.partition.dynamic_programming import stages_needed
from smdist.modelparallel.core.partition.result import Bottleneck, Partition
from smdist.modelparallel.core.partition.scoring import Scorer

WORTHWHILE = 1.02
"""Smallest speedup, 2 %, that justifies one more stage, or dividing a unit."""


def bottleneck_of(scorer: Scorer, loads: tuple[float, ...]) -> Bottleneck | None:
    """Return the slowest unit if it limits the pipeline's speed, otherwise None.

    A unit (undivided module) limits the speed if its time is more than 2 % longer than the time of
    the whole model divided by the number of ranks.

    Args:
        scorer: Scorer with the model's units and the options of the partition.
        loads: Seconds of one microbatch on each stage of the partition.
    """
    chain, options = scorer.chain, scorer.options
    end = len(chain.names)
    seconds = [chain.span(at, at + 1).seconds for at in range(end)]
    total, slowest = chain.span(0, end).seconds, max(seconds)
    if slowest * options.num_ranks <= total * WORTHWHILE:
        return None
    sums = [0.0] * options.num_ranks
    for rank, load in zip(options.rank_of, loads, strict=True):
        sums[rank] += load
    needed = stages_needed(chain, options, max(sums) * WORTHWHILE)
    return Bottleneck(
        unit=chain.names[seconds.index(slowest)],
        share=slowest / total,
        useful_stages=min(options.num_ranks, needed),
    )


def advice(bottleneck: Bottleneck, num_ranks: int) -> Note:
    """Return a note that explains a bottleneck, and advises fewer ranks or smaller modules.

    Args:
        bottleneck: Unit that limits the pipeline's speed.
        num_ranks: Number of ranks of the pipeline.
    """
    useful, gain = bottleneck.useful_stages, 1 / bottleneck.share
    cap = f"more than {gain:.1f} times as fast as" if gain >= 1.05 else "noticeably faster than"
    finding = (
        f"{bottleneck.unit} takes {bottleneck.share:.0%} of the time, so no pipeline is {cap} "
        "one rank"
    )
    hint = (
        "divide it into smaller modules, or split it over several devices (an output layer can "
        "compute its loss in chunks)"
    )
    if useful >= num_ranks:
        return _note(bottleneck, f"{finding}. {hint[0].upper()}{hint[1:]}")
    if useful == 1:
        same = (
            f"; with its modules of today, {num_ranks} ranks are no faster than one. Use one rank"
        )
    else:
        same = f", and {num_ranks} ranks are no faster than {useful}. Use {useful} ranks"
    return _note(bottleneck, f"{finding}{same}, or {hint}")


def _note(bottleneck: Bottleneck, text: str) -> Note:
    return Note(BOTTLENECK, text, bottleneck.unit)


def next_to_open(
    graph: Graph, costs: Costs, partition: Partition, *, closed: Collection[str] = ()
) -> str | None:
    """Return the module to split next into the modules inside it.

    The slowest module of the slowest stage is chosen.

    Args:
        graph: Graph that was partitioned.
        costs: Costs of the graph's nodes, from which the partition was computed.
        partition: Best partition so far.
        closed: Modules that must not be chosen, because they cannot be split.

    Returns:
        Name of the module. None if the slowest stage takes at most 2 % longer than the average
        stage, or if no module of the slowest stage can be chosen.
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
    """Return the load of a stage, or infinity if the stage does not exist."""
    return loads[stage] if 0 <= stage < len(loads) else float("inf")
