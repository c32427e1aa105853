# SPDX-License-Identifier: Apache-2.0
"""Partition of a model into pipeline stages.

A unit is a module that is never divided; a stage has consecutive units. `partition` searches for
the best stages. `assigned` computes the costs of stages that the caller chose.

The load of a stage is its time for one microbatch: forward pass, backward pass, and the messages
that enter and leave the stage. The slowest stage limits the pipeline's speed. So the search
minimizes the largest load, within the memory of each rank. Among partitions with the same largest
load, it chooses the one that sends the fewest bytes, then the one whose fullest rank holds the
fewest bytes.

With one stage on each rank and without an `objective` of the caller, the result is optimal.
Otherwise a local search improves it: it moves single units to a neighbour stage. Finally, units
that share a parameter (tied weights) are moved to the same stage if load and memory do not grow.
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
from smdist.modelparallel.core.partition.partition_options import PartitionOptions, PartitionRequest
from smdist.modelparallel.core.partition.refine import join_tied_units
from smdist.modelparallel.core.partition.result import Bottleneck, Partition
from smdist.modelparallel.core.partition.scoring import Objective, Scorer
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
    """Return the best partition of a model into stages of consecutive units.

    A unit is a module that is never divided between stages.

    Args:
        graph: Graph of the model.
        costs: Costs of the graph's nodes for one microbatch.
        num_stages: Number of stages: number of ranks times stages on each rank.
        device_bytes: Bytes that a rank may hold; None means no limit.
        in_flight: For each stage, the largest number of microbatches whose activations it keeps at
            the same time. The default is 1 for every stage.
        rank_of: Rank of each stage. The default is one stage on each rank.
        link: Link between stages; messages take no time by default.
        state: Bytes of weight, gradient and optimizer state for each element of a trained
            parameter; the default is Adam in fp32.
        memory_weight: Weight of memory in the load that is minimized, from 0 (time alone) to 1
            (memory alone). Time and memory are measured as fractions of the whole model's time and
            memory. The default is the weight of `optimize`, or 0.
        optimize: "memory" for a memory weight of 0.8, "speed" for 0.2, as in SageMaker's library.
        objective: Function that returns the seconds of a step from the cost of each stage and the
            placement, such as a simulation. It replaces the largest load as the value to minimize.

    Raises:
        OptionError: A number is out of range, there are more stages than units, or the model
            does not fit in `device_bytes`; all wrong options are reported at once.
    """
    request = PartitionRequest(
        num_stages=num_stages, device_bytes=device_bytes, in_flight=in_flight, rank_of=rank_of,
        link=link, state=state, memory_weight=memory_weight, optimize=optimize,
    )  # fmt: skip
    raise_all([*request.faults(), *_too_many_stages(graph, num_stages)])
    scorer = _scorer(graph, costs, request.options(), objective)
    stage_of, moved = join_tied_units(scorer, scorer.assign(best_cuts(scorer)))
    return _result(scorer, scorer.place(stage_of), moved)


def assigned(
    graph: Graph, costs: Costs, stage_of: Mapping[str, int], *, num_stages: int,
    in_flight: Sequence[int] | None = None, rank_of: Sequence[int] | None = None,
    link: Link = NO_LINK, state: StateBytes = ADAM,
) -> Partition:  # fmt: skip
    """Return the partition that has the given stages, with the costs and memory of each stage.

    Args:
        graph: Graph of the model.
        costs: Costs of the graph's nodes for one microbatch.
        stage_of: Stage of each unit (undivided module), by the unit's name.
        num_stages: Number of stages.
        in_flight: For each stage, the largest number of microbatches whose activations it keeps at
            the same time. The default is 1 for every stage.
        rank_of: Rank of each stage. The default is one stage on each rank.
        link: Link between stages; messages take no time by default.
        state: Bytes of weight, gradient and optimizer state for each element of a trained
            parameter; the default is Adam in fp32.

    Raises:
        OptionError: A number is out of range, or the graph cannot run with these stages, for
            instance because a value would be sent to an earlier stage.
    """
    request = PartitionRequest(
        num_stages=num_stages, in_flight=in_flight, rank_of=rank_of, link=link, state=state
    )
    raise_all(request.faults())
    scorer = _scorer(graph, costs, request.options(), None)
    return _result(scorer, scorer.place(stage_of), ())


def _too_many_stages(graph: Graph, num_stages: int) -> list[OptionError]:
    units = len(placed_units(graph))
    if not isinstance(num_stages, int) or num_stages <= units:
        return []
    return [
        OptionError(
            f"num_stages is {num_stages}",
            f"each stage needs at least one module, and {graph.model} is split into only {units} "
            "modules",
            f"Use at most {units} stages, or divide modules of the model into smaller ones",
            about="num_stages",
            kind="too_many_stages",
        )
    ]


def _scorer(
    graph: Graph, costs: Costs, options: PartitionOptions, objective: Objective | None
) -> Scorer:
    chain = chain_of(graph, costs, options.state)
    return Scorer(
        graph=graph, costs=costs, chain=chain, options=_scaled(options, chain), objective=objective
    )


def _scaled(options: PartitionOptions, chain: Chain) -> PartitionOptions:
    """Return options by which a stage's load is a fraction of the whole model's time and memory.

    The model's time becomes `seconds_unit`, and its memory becomes `bytes_unit`. If
    `memory_weight` is 0, the load is a time in seconds, and the options are returned unchanged.
    """
    if not options.memory_weight:
        return options
    whole = chain.span(0, len(chain.names))
    memory = whole.memory_bytes(max(options.in_flight))
    return replace(options, seconds_unit=whole.seconds or 1.0, bytes_unit=memory or 1.0)


def _result(scorer: Scorer, placement: Placement, notes: tuple[Note, ...]) -> Partition:
    """Return the partition that has the stages of a placement, with their costs and memory.

    Args:
        scorer: Scorer that computes costs and memory of stages.
        placement: Stages of all nodes of the graph.
        notes: Notes for users. If one unit (undivided module) limits the pipeline's speed, a note
            about this unit is put first.
    """
    stage_costs = scorer.stage_costs(placement)
    loads = scorer.seconds(stage_costs)
    bottleneck = bottleneck_of(scorer, loads)
    if bottleneck:
        notes = (advice(bottleneck, scorer.options.num_ranks), *notes)
    return Partition(
        stages=_unit_names(scorer.graph, placement),
        rank_of=scorer.options.rank_of,
        placement=placement,
        costs=tuple(stage_cost.cost for stage_cost in stage_costs),
        loads=loads,
        state_bytes=tuple(stage_cost.state_bytes for stage_cost in stage_costs),
        peak_bytes=scorer.peaks(stage_costs, placement),
        bottleneck=bottleneck,
        notes=notes,
    )


def _unit_names(graph: Graph, placement: Placement) -> tuple[tuple[str, ...], ...]:
    """Return the names of the units (undivided modules) of each stage.

    A unit that runs on several stages is listed on the first of these stages.
    """
    stages: list[list[str]] = [[] for _ in range(placement.num_stages)]
    for node in graph.units:
        first = placement.stages[node.name][:1] or (0,)
        stages[first[0]].append(node.name)
    return tuple(map(tuple, stages))
