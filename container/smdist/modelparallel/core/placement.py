# SPDX-License-Identifier: Apache-2.0
"""Placement of a graph: the stages of each node, and the values that are sent between stages.

A unit (a module that is never divided) runs on its stage. An operation between units (glue) runs on
the latest stage that computes one of its inputs. A node that depends on the model's inputs alone
runs on every stage that needs its result, because every stage has the model's inputs. So masks and
position ids are never sent. A value is sent directly from the stage that computes it to each stage
that reads it, even if other stages are between the two. The model's outputs are sent to the last
stage, which computes the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sagemaker_dist.errors import OptionError, closest, raise_all
from smdist.modelparallel.core.graph import Graph, Node, NodeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Value that one stage sends to another; its gradient, if any, is sent back.

    Attributes:
        value: Name of the value in the graph.
        source: Stage that sends the value.
        target: Stage that receives the value.
        num_bytes: Bytes of the value for one microbatch; its gradient has as many.
        has_gradient: True if the gradient of the value is sent back.
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
        stages: Stages of each node, by its name. A node that depends on the model's inputs alone
            may run on several stages, or on none if no node reads it.
        edges: Values that stages send, ordered by sender, receiver, then order of execution.
        ties: Parameters that several stages hold.
    """

    num_stages: int
    stages: Mapping[str, tuple[int, ...]]
    edges: tuple[Edge, ...]
    ties: tuple[Tie, ...]


def replicated(graph: Graph) -> frozenset[str]:
    """Return the names of nodes that every stage computes for itself if it reads their values.

    These nodes depend on the model's inputs alone. They have no parameters, draw no random numbers
    and change no buffers, so each stage computes the same values.
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
    """Return the units (undivided modules) to assign to stages.

    Units that every stage computes for itself are left out.
    """
    free = replicated(graph)
    return tuple(node for node in graph.units if node.name not in free)


def place(graph: Graph, stage_of: Mapping[str, int], *, num_stages: int | None = None) -> Placement:
    """Return the stages of all nodes of a graph, from the stage of each unit (undivided module).

    Args:
        graph: Graph to place.
        stage_of: Stage of each unit, by the unit's name. Units that depend on the model's inputs
            alone may be left out: they run on every stage that needs their results, whether
            they are listed or not.
        num_stages: Number of stages. The default is one more than the largest stage in `stage_of`.

    Raises:
        OptionError: A unit has no stage, a name or stage does not exist, a stage has no unit, or
            a unit needs a value of a later stage; all such faults are reported at once.
    """
    free = replicated(graph)
    count = num_stages if num_stages is not None else max(_numbers(stage_of), default=0) + 1
    bad = list(_faults(graph, stage_of, count, free))
    known = {name: stage for name, stage in stage_of.items() if _is_stage(stage)}
    where = _stage_of_nodes(graph, known, count - 1)
    raise_all([*bad, *_backward(graph, where, known)])
    stages = _with_replicas(graph, where, count - 1)
    return Placement(
        num_stages=count,
        stages=stages,
        edges=tuple(_edges(graph, stages, count - 1)),
        ties=tuple(_ties(graph, stages)),
    )


def _stage_of_nodes(graph: Graph, stage_of: Mapping[str, int], last: int) -> dict[str, int]:
    """Return the stage of each node that runs on one stage only, by the node's name.

    An operation between units runs on the latest stage that computes one of its inputs. If no unit
    computes its inputs, as for a class token (a parameter of the model), the operation runs on the
    first stage that reads its result. A unit that is missing in `stage_of` is placed like such an
    operation.

    Args:
        graph: Graph of the model.
        stage_of: Stage of each unit (undivided module), by the unit's name.
        last: Number of the last stage, which reads the model's outputs.
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
    """Return the first stage that reads each value, by the value's name.

    Args:
        graph: Graph of the model.
        where: Stage of each node to look at, by the node's name; other nodes are ignored.
        last: Number of the last stage, which reads the model's outputs.
    """
    first = dict.fromkeys(graph.outputs, last)
    for node in graph.nodes:
        if node.name in where:
            for value in node.reads:
                first[value] = min(first.get(value, last), where[node.name])
    return first


def _writers(graph: Graph, node: Node) -> Iterator[str]:
    """Return the names of the nodes whose results this node reads."""
    return (graph.writer[value].name for value in node.reads)


def _with_replicas(graph: Graph, where: Mapping[str, int], last: int) -> dict[str, tuple[int, ...]]:
    """Return the stages of every node, by the node's name.

    Args:
        graph: Graph of the model.
        where: Stage of each node that runs on one stage only. Each other node has a replica on
            every stage that reads its values.
        last: Number of the last stage, to which the model's outputs are sent.
    """
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
    return sorted(
        edges, key=lambda edge: (edge.source, edge.target)
    )  # stable: keeps the order of execution


def _ties(graph: Graph, stages: Mapping[str, tuple[int, ...]]) -> Iterator[Tie]:
    """Yield the parameters that nodes of several stages use, each with these stages."""
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
                f"{graph.model} has no module of this name that can be placed",
                closest(name, units),
                about=("stage_of", name),
                kind="unknown",
            )
        if not _is_stage(stage) or stage >= num_stages:
            yield OptionError(
                f"stage of {name!r} is {stage!r}",
                f"the stages are 0 to {num_stages - 1}",
                "Pass one of these stages",
                about=("stage_of", name),
            )
    for node in graph.units:
        if node.name not in stage_of and node.name not in free:
            yield OptionError(
                f"module {node.name!r} has no stage",
                "every module needs a stage to run on",
                "Add the module and its stage to stage_of",
                about=("stage_of", node.name),
                kind="missing",
            )
    used = {stage for name, stage in stage_of.items() if name in units - free}
    for stage in sorted(set(range(num_stages)) - used):
        yield OptionError(
            f"stage {stage} has no module",
            f"each of the {num_stages} stages needs at least one module",
            "Move a module to this stage, or use fewer stages",
            about="num_stages",
            kind="empty_stage",
        )


def _backward(
    graph: Graph, where: Mapping[str, int], stage_of: Mapping[str, int]
) -> Iterator[OptionError]:
    """Yield one error for each unit that needs a value of a later stage.

    Args:
        graph: Graph of the model.
        where: Stage of each node that runs on one stage only, by the node's name.
        stage_of: Stage of each unit (undivided module), by the unit's name.
    """
    origin: dict[str, str] = {}  # name of the unit that decided the stage of each node
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
                "and values are sent to later stages only",
                f"Move {node.name!r} to stage {where[latest]} or later, "
                f"or {cause!r} to stage {where[node.name]} or earlier",
                about=("stage_of", node.name),
                kind="stage_order",
            )
