# SPDX-License-Identifier: Apache-2.0
"""Placement of a graph: stages of each node, and values that travel between stages.

A unit runs on its stage. Glue runs on the stage of the last of its inputs. A node that depends on
the model's inputs alone runs on every stage that reads it, since every stage has the inputs: masks
and position ids never travel. A value goes directly from the stage that writes it to each stage
that reads it, even if other stages lie between. The model's outputs go to the last stage, which
computes the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.core.graph import Graph, Node, NodeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Value that travels from one stage to another, and its gradient that travels back.

    Attributes:
        value: Name of the value in the graph.
        source: Stage that sends the value.
        target: Stage that receives the value.
        num_bytes: Bytes for one microbatch, in one direction.
        has_gradient: True if a gradient travels back.
    """

    value: str
    source: int
    target: int
    num_bytes: int
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """Tied parameter: several stages hold it, and sum its gradients before each update."""

    parameter: str
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Stages of all nodes of a graph, and the messages between stages.

    Attributes:
        num_stages: Number of stages.
        stages: Stages of each node, by its name. A replicated node runs on several stages, or on
            none if no node reads it.
        edges: Values that travel, each edge once, ordered by source, target, then execution.
        ties: Parameters that several stages hold.
    """

    num_stages: int
    stages: Mapping[str, tuple[int, ...]]
    edges: tuple[Edge, ...]
    ties: tuple[Tie, ...]


def replicated(graph: Graph) -> frozenset[str]:
    """Return the names of nodes that run on every stage that reads them.

    These nodes depend on the model's inputs alone: they have no parameters, draw no random numbers
    and change no buffers, so every copy computes the same values.
    """
    names: set[str] = set()
    for node in graph.nodes:
        is_same_everywhere = not (node.parameters or node.is_random or node.has_state)
        if node.kind is NodeKind.INPUT or (
            is_same_everywhere and all(graph.writer[value].name in names for value in node.reads)
        ):
            names.add(node.name)
    return frozenset(names)


def placed_units(graph: Graph) -> tuple[Node, ...]:
    """Return the units that need a stage: all units that are not replicated."""
    free = replicated(graph)
    return tuple(node for node in graph.units if node.name not in free)


def place(graph: Graph, stage_of: Mapping[str, int], *, num_stages: int | None = None) -> Placement:
    """Place the whole graph on stages, from the stage of each unit.

    Args:
        graph: Graph to place.
        stage_of: Stage of each unit, by the unit's name. Replicated units may be left out: they run
            on the stages that read them, even if a stage is named here.
        num_stages: Number of stages. The default is one more than the largest stage in `stage_of`.

    Raises:
        OptionError: A unit has no stage, a name or stage does not exist, a stage has no unit, or
            a value would have to go back to an earlier stage; all such faults at once.
    """
    free = replicated(graph)
    count = num_stages if num_stages is not None else max(_numbers(stage_of), default=0) + 1
    bad = list(_faults(graph, stage_of, count, free))
    known = {name: stage for name, stage in stage_of.items() if _is_stage(stage)}
    where = _home(graph, known, count - 1)
    raise_all([*bad, *_backward(graph, where, known)])
    stages = _with_replicas(graph, where, count - 1)
    return Placement(
        num_stages=count,
        stages=stages,
        edges=tuple(_edges(graph, stages, count - 1)),
        ties=tuple(_ties(graph, stages)),
    )


def _home(graph: Graph, stage_of: Mapping[str, int], last: int) -> dict[str, int]:
    """Return the stage of each node that is not replicated.

    Glue runs on the stage of the last of its inputs. Glue without an input from a unit, such as a
    class token, runs on the first stage that reads it. A unit without a stage is treated as glue.
    """
    free = replicated(graph)
    where: dict[str, int] = {}
    late: list[Node] = []
    for node in graph.nodes:
        if node.name in free:
            continue
        sources = [where[n] for n in _writers(graph, node) if n in where]
        if node.kind is NodeKind.UNIT and node.name in stage_of:
            where[node.name] = stage_of[node.name]
        elif sources:
            where[node.name] = max(sources)
        else:
            late.append(node)
    first = _first_readers(graph, where, last) if late else {}
    for node in reversed(late):
        where[node.name] = min((first.get(v.name, last) for v in node.writes), default=0)
        for value in node.reads:
            first[value] = min(first.get(value, last), where[node.name])
    return where


def _first_readers(graph: Graph, where: Mapping[str, int], last: int) -> dict[str, int]:
    first = dict.fromkeys(graph.outputs, last)
    for node in graph.nodes:
        if node.name in where:
            for value in node.reads:
                first[value] = min(first.get(value, last), where[node.name])
    return first


def _writers(graph: Graph, node: Node) -> Iterator[str]:
    return (graph.writer[value].name for value in node.reads)


def _with_replicas(graph: Graph, where: Mapping[str, int], last: int) -> dict[str, tuple[int, ...]]:
    wanted: dict[str, set[int]] = {node.name: set() for node in graph.nodes}
    for value in graph.outputs:
        wanted[graph.writer[value].name].add(last)
    for node in reversed(graph.nodes):
        mine = {where[node.name]} if node.name in where else wanted[node.name]
        wanted[node.name] = mine
        for name in _writers(graph, node):
            wanted[name] |= mine
    return {name: tuple(sorted(stages)) for name, stages in wanted.items()}


def _edges(graph: Graph, stages: Mapping[str, tuple[int, ...]], last: int) -> list[Edge]:
    targets: dict[str, set[int]] = {value: {last} for value in graph.outputs}
    for node in graph.nodes:
        for value in node.reads:
            targets.setdefault(value, set()).update(stages[node.name])
    edges = [
        Edge(
            value=value.name,
            source=stages[node.name][0],
            target=target,
            num_bytes=value.num_bytes,
            has_gradient=value.has_gradient,
        )
        for node in graph.nodes
        for value in node.writes
        for target in targets.get(value.name, set()) - set(stages[node.name])
    ]
    return sorted(edges, key=lambda edge: (edge.source, edge.target))  # stable: execution is third


def _ties(graph: Graph, stages: Mapping[str, tuple[int, ...]]) -> Iterator[Tie]:
    holders: dict[str, set[int]] = {}
    for node in graph.nodes:
        for name in node.parameters:
            holders.setdefault(name, set()).update(stages[node.name])
    for name, of in holders.items():
        if len(of) > 1:
            yield Tie(parameter=name, stages=tuple(sorted(of)))


def _numbers(stage_of: Mapping[str, int]) -> list[int]:
    return [stage for stage in stage_of.values() if _is_stage(stage)]


def _is_stage(stage: object) -> bool:
    return isinstance(stage, int) and not isinstance(stage, bool) and stage >= 0


def _faults(
    graph: Graph, stage_of: Mapping[str, int], num_stages: int, free: frozenset[str]
) -> Iterator[OptionError]:
    units = {node.name for node in graph.units}
    for name, stage in stage_of.items():
        if name not in units:
            yield OptionError(
                f"{name!r} has stage {stage!r}",
                f"{graph.model} has no unit of that name",
                closest(name, units),
            )
        if not _is_stage(stage) or stage >= num_stages:
            yield OptionError(
                f"stage of {name!r} is {stage!r}",
                f"the stages are 0 to {num_stages - 1}",
                "Name one of them",
            )
    for node in graph.units:
        if node.name not in stage_of and node.name not in free:
            yield OptionError(
                f"unit {node.name!r} has no stage", "every unit runs somewhere", "Name its stage"
            )
    used = {stage for name, stage in stage_of.items() if name in units - free}
    for stage in sorted(set(range(num_stages)) - used):
        yield OptionError(
            f"stage {stage} has no unit",
            f"each of the {num_stages} stages needs one of its own",
            "Move a unit to it or use fewer stages",
        )


def _backward(
    graph: Graph, where: Mapping[str, int], stage_of: Mapping[str, int]
) -> Iterator[OptionError]:
    """Return one fault for each unit that reads a value of a later stage."""
    origin: dict[str, str] = {}  # the unit that decided the stage of each node
    for node in graph.nodes:
        if node.name not in where:
            continue
        before = [name for name in _writers(graph, node) if name in where]
        latest = max(before, key=where.__getitem__, default=node.name)
        is_unit = node.kind is NodeKind.UNIT and node.name in stage_of
        origin[node.name] = node.name if is_unit else origin.get(latest, node.name)
        if is_unit and where[latest] > where[node.name]:
            cause = origin[latest]
            yield OptionError(
                f"{node.name!r} is on stage {where[node.name]}",
                f"it needs what {cause!r} computes on stage {where[latest]}, "
                "and values only go forward",
                f"Move {node.name!r} to stage {where[latest]} or later, "
                f"or {cause!r} to stage {where[node.name]} or earlier",
            )
