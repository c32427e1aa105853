# SPDX-License-Identifier: Apache-2.0
"""Graph of a model: its nodes and the values between them, in the order of execution.

    input ids ─> unit embed ─> unit layers.0 ─> glue add ─> unit layers.1 ─> output

A unit is a module that is never divided between stages. Glue is an operation between units, in the
forward function of a module that contains them. Units and glue are nodes: a node reads values and
writes new ones. Nodes are listed in an order in which they can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from sagemaker_dist.errors import require


class NodeKind(str, Enum):
    """Kind of a node: model input, unit (undivided module) or glue (operation between units)."""

    INPUT = "input"
    UNIT = "unit"
    GLUE = "glue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Tensor that one node of the graph writes and other nodes read.

    Attributes:
        name: Name that is unique in the graph.
        shape: Shape for one microbatch.
        dtype: Framework's name of the dtype, without a prefix: "float32".
        num_bytes: Bytes for one microbatch.
        has_gradient: True if the backward pass computes a gradient for the value.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Parameter of the model, trained or frozen.

    Attributes:
        name: Name of the parameter in the model, such as "transformer.wte.weight". For a tied
            parameter with several names, the first one in the order of `named_parameters()`.
        shape: Shape of the whole parameter.
        dtype: Framework's name of the dtype, without a prefix: "float32".
        num_elements: Number of elements of the whole parameter.
        num_bytes: Bytes of the whole parameter in its dtype.
        is_trained: True if the parameter gets a gradient.
        aliases: All other names of a tied parameter, such as "lm_head.weight".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_elements: int
    num_bytes: int
    is_trained: bool = True
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Step of the forward pass: input, call of a module (unit), or operation between modules.

    Attributes:
        name: Name that is unique in the graph. A unit has its module's name, with "@2" appended for
            the module's second call.
        kind: Input of the model, unit, or glue (operation between units).
        module: Name of the unit's module; for glue, name of the module whose forward function
            contains the operation. "" is the name of the whole model.
        reads: Names of the values that the node reads, each written by an earlier node.
        writes: Values that the node computes.
        parameters: Names (`Parameter.name`) of all parameters that the node uses.
        is_random: True if the node may draw random numbers.
        has_state: True if the node changes buffers, so that it must run exactly once.
        type: Class of the module or name of the function, shown in reports.
    """

    name: str
    kind: NodeKind
    module: str
    reads: tuple[str, ...] = ()
    writes: tuple[Value, ...] = ()
    parameters: tuple[str, ...] = ()
    is_random: bool = False
    has_state: bool = False
    type: str = ""


@dataclass(frozen=True, kw_only=True)  # no slots: the class has cached properties
class Graph:
    """Graph of a model's forward pass for one microbatch: nodes, and values between them.

    Attributes:
        model: Class of the model, shown in reports.
        nodes: Nodes in the order of execution.
        outputs: Names of the values that the model returns.
        parameters: All parameters of the model, used or not.

    Raises:
        OptionError: Two nodes have the same name, or a node reads a value that no earlier node
            writes.
    """

    model: str
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        require(
            len(set(names)) == len(names),
            what=f"several nodes of {self.model} are named {_repeated(names)!r}",
            why="every node needs a unique name",
            hint="Give each node its own name; append @2 for the second call of a module",
            about="nodes",
        )
        written: set[str] = set()
        for node in self.nodes:
            missing = [name for name in node.reads if name not in written]
            require(
                not missing,
                what=f"{node.name!r} reads {missing!r}",
                why="no earlier node writes this value",
                hint="List the nodes in the order of execution",
                about="nodes",
            )
            written |= {value.name for value in node.writes}

    @cached_property
    def units(self) -> tuple[Node, ...]:
        """Nodes that are calls of undivided modules, which a partition assigns to stages."""
        return tuple(node for node in self.nodes if node.kind is NodeKind.UNIT)

    @cached_property
    def node(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def parameter(self) -> Mapping[str, Parameter]:
        """Parameters by `Parameter.name`, without aliases."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def value(self) -> Mapping[str, Value]:
        """Tensors that nodes of this graph write, by name."""
        return {value.name: value for node in self.nodes for value in node.writes}

    @cached_property
    def writer(self) -> Mapping[str, Node]:
        """Node that writes each value, by the value's name."""
        return {value.name: node for node in self.nodes for value in node.writes}

    def readers(self, value: str) -> Iterator[Node]:
        """Return the nodes that read a value, in the order of execution."""
        return (node for node in self.nodes if value in node.reads)


def _repeated(names: list[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted({name for name in names if names.count(name) > 1})
