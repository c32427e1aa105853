# SPDX-License-Identifier: Apache-2.0
"""Graphs of models for tests, written by hand or drawn at random."""

from hypothesis import strategies as st

from smdist.modelparallel.core.cost import Costs, NodeCost
from smdist.modelparallel.core.graph import Graph, Node, NodeKind, Parameter, Value


def node(
    kind, name, *reads, parameters=(), is_random=False, num_bytes=8, has_gradient=True, also=()
):
    """Return a node that writes a value of its own name, and the values in `also`."""
    values = [
        Value(
            name=each, shape=(1,), dtype="float32", num_bytes=num_bytes, has_gradient=has_gradient
        )
        for each in (name, *also)
    ]
    return Node(
        name=name,
        kind=kind,
        module=name,
        reads=reads,
        writes=tuple(values),
        parameters=tuple(parameters),
        is_random=is_random,
    )


def given(name="ids", **more):
    return node(NodeKind.INPUT, name, has_gradient=False, **more)


def unit(name, *reads, own=True, **more):
    """Return a unit, by default with a parameter of its own."""
    more.setdefault("parameters", [f"{name}.weight"] if own else [])
    return node(NodeKind.UNIT, name, *reads, **more)


def glue(name, *reads, **more):
    return node(NodeKind.GLUE, name, *reads, **more)


def graph(*nodes, outputs=None, sizes=()):
    """Return a model of these nodes, which by default returns the last node's value."""
    names = dict.fromkeys(name for each in nodes for name in each.parameters)
    sizes = dict(sizes)
    return Graph(
        model="Net",
        nodes=nodes,
        outputs=tuple(outputs or (nodes[-1].name,)),
        parameters=tuple(parameter(name, sizes.get(name, 1)) for name in names),
    )


def parameter(name, num_elements=1):
    return Parameter(
        name=name,
        shape=(num_elements,),
        dtype="float32",
        num_elements=num_elements,
        num_bytes=4 * num_elements,
    )


def costs(seconds=(), *, saved=(), workspace=()):
    """Return costs by node name: forward seconds, saved bytes, workspace bytes."""
    seconds, saved, workspace = dict(seconds), dict(saved), dict(workspace)
    nodes = {
        name: NodeCost(
            forward_seconds=seconds.get(name, 0.0),
            saved_bytes=saved.get(name, 0),
            workspace_bytes=workspace.get(name, 0),
        )
        for name in [*seconds, *saved, *workspace]
    }
    return Costs(nodes=nodes, source="measured", device="cpu")


def chain(*seconds):
    """Return a chain of units u0, u1, ... and their costs."""
    nodes = [given()]
    for number in range(len(seconds)):
        nodes.append(unit(f"u{number}", nodes[-1].name))
    return graph(*nodes), costs({f"u{n}": float(s) for n, s in enumerate(seconds)})


@st.composite
def graphs(draw, max_nodes=12, min_units=1):
    """Draw any graph with at least `min_units` units that get a stage."""
    nodes, placed = [given()], 0
    for number in range(draw(st.integers(min_units, max_nodes))):
        kind = draw(st.sampled_from([NodeKind.UNIT, NodeKind.UNIT, NodeKind.GLUE]))
        nodes.append(_drawn(draw, kind, f"{kind.value}{number}", nodes))
        placed += bool(kind is NodeKind.UNIT and nodes[-1].parameters)
    for number in range(min_units - placed):
        last = nodes[-1].name
        nodes.append(unit(f"more{number}", last))
    names = [value.name for each in nodes for value in each.writes]
    outputs = draw(st.lists(st.sampled_from(names), unique=True, max_size=2))
    return graph(*nodes, outputs=[*dict.fromkeys([*outputs, names[-1]])], sizes={"tied": 20})


def _drawn(draw, kind, name, before):
    names = [value.name for each in before for value in each.writes]
    reads = draw(st.lists(st.sampled_from(names), unique=True, max_size=3))
    if draw(st.integers(0, 3)):
        reads = list(dict.fromkeys([names[-1], *reads]))
    shared = st.sampled_from([(), (), ("tied",), (f"{name}.w",), (f"{name}.w",)])
    only_glue = st.sampled_from([(), (), (), ("token",)])
    return node(
        kind,
        name,
        *reads,
        parameters=draw(shared if kind is NodeKind.UNIT else only_glue),
        is_random=draw(st.sampled_from([False, False, False, True])),
        num_bytes=draw(st.integers(0, 4)),
        has_gradient=draw(st.booleans()),
        also=draw(st.sampled_from([(), (), (f"{name}.second",)])),
    )


@st.composite
def costs_of(draw, of):
    """Draw integer costs, so that sums are exact."""
    small = st.integers(0, 9)
    nodes = {
        each.name: NodeCost(
            forward_seconds=float(draw(small)),
            input_gradient_seconds=float(draw(small)),
            saved_bytes=draw(small),
            workspace_bytes=draw(small),
        )
        for each in of.nodes
    }
    return Costs(nodes=nodes, source="measured", device="cpu")
