# SPDX-License-Identifier: Apache-2.0
r"""Division of an autograd graph between the two halves of a stage's backward pass.

                 roots                     outputs of the stage
                   |
    trunk        gelu
                   |                       trunk: nodes from which an input can be reached
    trunk        addmm ---- t --- weight   branches: all other nodes; they lead only to parameters
                   |   \--------- bias
    trunk        input                     input of the stage

The first half, I, runs the trunk, and computes gradients of the stage's inputs. The second half, W,
runs branches, and computes gradients of parameters.

A branch can run in W if all its edges from the trunk begin at matrix products or convolutions. A
branch with any other edge from the trunk runs in I, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from smdist.modelparallel.torch.executor.split_backward.product_gradients import can_wait

Edges = Mapping[Node, tuple[tuple[Node | None, int], ...]]

_LEAF = "torch::autograd::AccumulateGrad"
_RUNS_BACKWARD_ITSELF = "CheckpointFunctionBackward"


class BranchEntry(NamedTuple):
    """Place where a branch (a part of the graph that leads only to parameters) begins.

    Attributes:
        node: Node outside the branch, on a path to the stage's inputs.
        argument: Number of the node's argument whose gradient goes into the branch.
        target: Edge to the node of the branch that receives this gradient.
    """

    node: Node
    argument: int
    target: GradientEdge


@dataclass(slots=True, eq=False)
class Branch:
    """Connected part of an autograd graph that leads only to parameters, not to a stage's inputs.

    Attributes:
        entries: Places where the rest of the graph leads into the branch.
        leaves: Parameters whose gradients the branch computes.
    """

    entries: list[BranchEntry] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)

    @property
    def can_wait(self) -> bool:
        """True if the branch can run later than the rest of the backward pass."""
        return all(can_wait(entry.node, entry.argument) for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Division of a stage's autograd graph into the nodes that lead to its inputs, and the others.

    Paths are followed as the backward pass does: from the stage's outputs to its inputs.

    Attributes:
        trunk: Nodes from which the backward pass continues to an input of the stage.
        branch_of: Branch of each node outside the trunk. A branch is a connected part of the graph
            that leads only to parameters.
        can_split: True if gradients of inputs and of parameters can be computed separately. False
            if the graph has a reentrant checkpoint, which computes both at once.
    """

    trunk: frozenset[Node]
    branch_of: Mapping[Node, Branch]
    can_split: bool


def survey(starts: Iterable[Node], inputs: frozenset[Node]) -> Survey:
    """Divide an autograd graph into the nodes that lead to a stage's inputs, and the others.

    Args:
        starts: Nodes where the backward pass starts.
        inputs: Nodes of the stage's inputs.
    """
    edges = _edges(starts)
    trunk = _leading(edges, inputs)
    branch_of = _branches(edges, trunk)
    for node in trunk:
        for argument, (target, number) in enumerate(edges[node]):
            if target is not None and target not in trunk:
                entry = BranchEntry(node, argument, GradientEdge(target, number))
                branch_of[target].entries.append(entry)
    return Survey(
        trunk=frozenset(trunk),
        branch_of=branch_of,
        can_split=all(node.name() != _RUNS_BACKWARD_ITSELF for node in edges),
    )


def _edges(starts: Iterable[Node]) -> Edges:
    """Return all nodes that can be reached from `starts`, each with its `next_functions`.

    Each node comes after all nodes to which it leads.
    """
    edges: dict[Node, tuple[tuple[Node | None, int], ...]] = {}
    opened: dict[Node, tuple[tuple[Node | None, int], ...]] = {}
    stack = list(starts)
    while stack:
        node = stack[-1]
        if node in edges:
            stack.pop()
        elif node in opened:
            edges[stack.pop()] = opened[node]
        else:
            opened[node] = node.next_functions
            stack += [each for each, _ in opened[node] if each is not None and each not in opened]
    return edges


def _leading(edges: Edges, inputs: frozenset[Node]) -> dict[Node, None]:
    """Return the nodes from which an input can be reached, as the keys of a dict.

    Args:
        edges: `next_functions` of each node. The nodes in `next_functions` come before the node.
        inputs: Nodes of the stage's inputs.
    """
    leading: dict[Node, None] = {}  # ordered as `edges`, so that the order of entries is fixed
    for node, after in edges.items():
        if node in inputs or any(each in leading for each, _ in after):
            leading[node] = None
    return leading


def _branches(edges: Edges, trunk: Mapping[Node, None]) -> dict[Node, Branch]:
    """Return the branch of each node outside the trunk; connected nodes share a branch.

    The union-find algorithm joins nodes.

    Args:
        edges: `next_functions` of each node of the graph.
        trunk: Nodes from which an input of the stage can be reached.
    """
    above: dict[Node, Node] = {node: node for node in edges if node not in trunk}
    for node in above:
        for each, _ in edges[node]:
            if each is not None:
                above[_top(above, each)] = _top(above, node)
    branches: dict[Node, Branch] = {}
    branch_of = {node: branches.setdefault(_top(above, node), Branch()) for node in above}
    for node, branch in branch_of.items():
        if node.name() == _LEAF:
            branch.leaves.append(node.variable)  # type: ignore[attr-defined]
    return branch_of


def _top(above: dict[Node, Node], node: Node) -> Node:
    """Return the representative of a node's set in union-find, and shorten the path to it.

    Args:
        above: Parent of each node; a representative is its own parent.
        node: Node to start from.
    """
    while above[node] is not node:
        above[node] = node = above[above[node]]
    return node
