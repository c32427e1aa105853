# SPDX-License-Identifier: Apache-2.0
"""A model as its parts and the values that flow between them, in the order of execution.

    input ids ─> unit embed ─> unit layers.0 ─> glue add ─> unit layers.1 ─> output

A unit is a module that is never cut. Glue is what the forward functions of the modules around the
units compute themselves. Both are nodes: a node reads values and writes new ones. Whatever order
nodes have here is an order in which they can run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from sagemaker_dist.errors import require


class Kind(str, Enum):
    """What a node is."""

    INPUT = "input"
    UNIT = "unit"
    GLUE = "glue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that flows from the node that writes it to those that read it.

    Attributes:
        name: Unique in the graph.
        shape: Of one microbatch, as captured.
        dtype: As the framework spells it, without a prefix: "float32".
        num_bytes: Of one microbatch.
        has_gradient: Whether a gradient flows back along it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A tensor that is trained, or frozen.

    Attributes:
        name: Its first name in the model, such as "transformer.wte.weight".
        num_elements: Of the whole parameter.
        num_bytes: Of the whole parameter in its own dtype.
        is_trained: Whether it gets a gradient.
        aliases: Its other names, such as "lm_head.weight" where the two are tied.
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
    """A step of the forward pass.

    Attributes:
        name: Unique in the graph. A unit's is its module's, with "@2" for its second call.
        module: The module that it is, or whose forward function glue belongs to; "" is the model.
        reads: Names of values, each written by an earlier node.
        writes: Its results.
        parameters: Names (`Parameter.name`) of all parameters that it uses.
        is_random: Whether it may draw random numbers.
        has_state: Whether it changes buffers, so that it must run exactly once.
        type: Class of the module, or name of the function: for people.
    """

    name: str
    kind: Kind
    module: str
    reads: tuple[str, ...] = ()
    writes: tuple[Value, ...] = ()
    parameters: tuple[str, ...] = ()
    is_random: bool = False
    has_state: bool = False
    type: str = ""


@dataclass(frozen=True, kw_only=True)  # no slots: cached properties
class Graph:
    """The whole forward pass of one microbatch.

    Attributes:
        model: Class of the model: for people.
        nodes: In the order of execution.
        outputs: Names of the values that the model returns.
        parameters: All of the model's, used or not.

    Raises:
        OptionError: A name stands twice, or a value is read before it is written.
    """

    model: str
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    parameters: tuple[Parameter, ...] = ()

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        require(
            len(set(names)) == len(names),
            what=f"nodes of {self.model} are {_repeated(names)!r}",
            why="every node has a name of its own",
            mend="Name each call once, with @2 for a second one",
        )
        written: set[str] = set()
        for node in self.nodes:
            missing = [name for name in node.reads if name not in written]
            require(
                not missing,
                what=f"{node.name!r} reads {missing!r}",
                why="no node before it writes that",
                mend="List nodes in the order of execution",
            )
            written |= {value.name for value in node.writes}

    @cached_property
    def units(self) -> tuple[Node, ...]:
        """The nodes that a partition assigns to stages."""
        return tuple(node for node in self.nodes if node.kind is Kind.UNIT)

    @cached_property
    def node(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def parameter(self) -> Mapping[str, Parameter]:
        """Parameters by first name."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def value(self) -> Mapping[str, Value]:
        """Values by name."""
        return {value.name: value for node in self.nodes for value in node.writes}

    @cached_property
    def writer(self) -> Mapping[str, Node]:
        """The node that writes a value, by the value's name."""
        return {value.name: node for node in self.nodes for value in node.writes}

    def readers(self, value: str) -> Iterator[Node]:
        """The nodes that read a value, in order."""
        return (node for node in self.nodes if value in node.reads)


def _repeated(names: list[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})
