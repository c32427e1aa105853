# SPDX-License-Identifier: Apache-2.0
"""Partition of a model into stages: `partition` finds the cuts, `assigned` takes given stages.

The load of a stage is the time of one microbatch, forward and backward, with the communication
that is not hidden: messages that enter and leave the stage, both ways, over the link. The slowest
stage limits the pipeline's speed, so the largest load is minimized, within each rank's memory.
Among equally good cuts, those that send the fewest bytes win, then those that hold the fewest.

With one stage a rank and no objective from the caller, these cuts are optimal. Otherwise cuts are
moved from there, as long as that improves the result. A unit that shares a parameter with a unit of
another stage is then moved to that stage, if this costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.cost import Costs, Link, StateBytes
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.note import Note
from smdist.modelparallel.core.partition.bottleneck import advice, bottleneck_of, next_to_open
from smdist.modelparallel.core.partition.chain import Chain, chain_of
from smdist.modelparallel.core.partition.memory_limit import best_cuts
from smdist.modelparallel.core.partition.objective import Aim, Wish
from smdist.modelparallel.core.partition.refine import join_ties
from smdist.modelparallel.core.partition.result import Bottleneck, Partition
from smdist.modelparallel.core.partition.scoring import Judge, Objective
from smdist.modelparallel.core.placement import Placement, placed_units

__all__ = ["Bottleneck", "Objective", "Partition", "assigned", "next_to_open", "partition"]

ADAM = StateBytes()
NO_LINK = Link()


def partition(
    graph: Graph, costs: Costs, *, num_stages: int, device_bytes: int | None = None,
    in_flight: Sequence[int] | None = None, rank_of: Sequence[int] | None = None,
    link: Link = NO_LINK, state: StateBytes = ADAM, memory_weight: float | None = None,
    optimize: str | None = None, objective: Objective | None = None,
) -> Partition:  # fmt: skip
    """Cut a model into stages: runs of units in the order of execution.

    Args:
        graph: Graph of the model.
        costs: Costs of the graph's nodes for one microbatch.
        num_stages: Number of stages: ranks times the stages of each rank.
        device_bytes: Bytes that a rank may hold; None means no limit.
        in_flight: Largest number of microbatches that each stage holds, by stage. The default is 1.
        rank_of: Rank of each stage. The default is one stage a rank.
        link: Link between stages; the default costs no time.
        state: Memory of a trained parameter; the default is Adam in fp32.
        memory_weight: Weight of memory in a load, from 0 (time alone) to 1 (memory alone), each as
            a fraction of the whole model's on one stage. The default is `optimize`'s weight, or 0.
        optimize: "memory" for a weight of 0.8, "speed" for 0.2, as in SageMaker's library.
        objective: Function that returns the seconds of a step from the costs by stage and the
            placement, such as a simulation.

    Raises:
        OptionError: A number is out of range, there are more stages than units, or the model
            does not fit in `device_bytes`; all faults of the request at once.
    """
    wish = Wish(
        num_stages=num_stages, device_bytes=device_bytes, in_flight=in_flight, rank_of=rank_of,
        link=link, state=state, memory_weight=memory_weight, optimize=optimize,
    )  # fmt: skip
    raise_all([*wish.faults(), *_too_many_stages(graph, num_stages)])
    judge = _judge(graph, costs, wish.aim(), objective)
    stage_of, moved = join_ties(judge, judge.assign(best_cuts(judge)))
    return _result(judge, judge.place(stage_of), moved)


def assigned(
    graph: Graph, costs: Costs, stage_of: Mapping[str, int], *, num_stages: int,
    in_flight: Sequence[int] | None = None, rank_of: Sequence[int] | None = None,
    link: Link = NO_LINK, state: StateBytes = ADAM,
) -> Partition:  # fmt: skip
    """Return the partition with the given stages, with the same data as `partition` returns.

    Args:
        stage_of: Stage of each unit, by the unit's name.
        graph, costs, num_stages, in_flight, rank_of, link, state: Same meaning as in `partition`.

    Raises:
        OptionError: A number is out of range, or the stages do not fit the graph (see `place`).
    """
    wish = Wish(num_stages=num_stages, in_flight=in_flight, rank_of=rank_of, link=link, state=state)
    raise_all(wish.faults())
    judge = _judge(graph, costs, wish.aim(), None)
    return _result(judge, judge.place(stage_of), ())


def _too_many_stages(graph: Graph, num_stages: int) -> list[OptionError]:
    units = len(placed_units(graph))
    if not isinstance(num_stages, int) or num_stages <= units:
        return []
    return [
        OptionError(
            f"num_stages is {num_stages}",
            f"{graph.model} has {units} units to put on stages",
            f"Use at most {units} stages, or open modules into finer units",
            about="num_stages",
        )
    ]


def _judge(graph: Graph, costs: Costs, aim: Aim, objective: Objective | None) -> Judge:
    chain = chain_of(graph, costs, aim.state)
    return Judge(
        graph=graph, costs=costs, chain=chain, aim=_scaled(aim, chain), objective=objective
    )


def _scaled(aim: Aim, chain: Chain) -> Aim:
    """Return the aim with time and memory as fractions of the whole model's, on one stage."""
    if not aim.memory_weight:
        return aim
    whole = chain.span(0, len(chain.names))
    memory = whole.memory_bytes(max(aim.in_flight))
    return replace(aim, seconds_unit=whole.seconds or 1.0, bytes_unit=memory or 1.0)


def _result(judge: Judge, placement: Placement, notes: tuple[Note, ...]) -> Partition:
    shares = judge.shares(placement)
    loads = judge.seconds(shares)
    bottleneck = bottleneck_of(judge, loads)
    if bottleneck:
        notes = (advice(bottleneck, judge.aim.num_ranks), *notes)
    return Partition(
        stages=_names(judge.graph, placement),
        rank_of=judge.aim.rank_of,
        placement=placement,
        costs=tuple(share.cost for share in shares),
        loads=loads,
        state_bytes=tuple(share.state_bytes for share in shares),
        peak_bytes=judge.peaks(shares, placement),
        bottleneck=bottleneck,
        notes=notes,
    )


def _names(graph: Graph, placement: Placement) -> tuple[tuple[str, ...], ...]:
    stages: list[list[str]] = [[] for _ in range(placement.num_stages)]
    for node in graph.units:
        first = placement.stages[node.name][:1] or (0,)
        stages[first[0]].append(node.name)
    return tuple(map(tuple, stages))
