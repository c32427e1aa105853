# SPDX-License-Identifier: Apache-2.0
r"""Division of an autograd graph between the two halves of a backward pass.

                 roots
                   |
    trunk        gelu
                   |                       trunk: nodes that lead to an input
    trunk        addmm ---- t --- weight   branches: nodes off the trunk that lead to no
                   |   \--------- bias     input, grouped by the parameters that they share
    trunk        input

The trunk runs in I. A branch waits for W if every node of the trunk that it starts from is a
product, whose gradient can be left out of I and computed later (product_gradients.py). Any other
branch runs in I as well, so a parameter gets its gradient at once and from only one of the halves.
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
    """Place where a branch begins: an argument of a node of the trunk.

    Attributes:
        node: Node of the trunk.
        argument: Number of the argument.
        target: Edge to the node of the branch that receives the argument's gradient.
    """

    node: Node
    argument: int
    target: GradientEdge


@dataclass(slots=True, eq=False)
class Branch:
    """Parameters that share parts of the graph, with the nodes that lead only to them.

    Attributes:
        entries: Places where the trunk leads into the branch.
        leaves: Parameters whose gradients the branch computes.
    """

    entries: list[BranchEntry] = field(default_factory=list)
    leaves: list[Tensor] = field(default_factory=list)

    @property
    def can_wait(self) -> bool:
        """True if the gradients at all entries can be computed later, in W."""
        return all(can_wait(entry.node, entry.argument) for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Division of an autograd graph into trunk and branches.

    Attributes:
        trunk: Nodes that lead to an input.
        branch_of: Branch of every other node.
        can_split: False if a node runs a backward pass of its own, as reentrant checkpoints do, and
            cannot compute some of its gradients alone.
    """

    trunk: frozenset[Node]
    branch_of: Mapping[Node, Branch]
    can_split: bool


def survey(starts: Iterable[Node], inputs: frozenset[Node]) -> Survey:
    """Divide the autograd graph into trunk and branches.

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
    """Return the successors of every node, in an order in which successors precede a node."""
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
    """Return the nodes that lead to an input, as the keys of a dict."""
    leading: dict[Node, None] = {}  # ordered as `edges`, so that the order of entries is fixed
    for node, after in edges.items():
        if node in inputs or any(each in leading for each, _ in after):
            leading[node] = None
    return leading


def _branches(edges: Edges, trunk: Mapping[Node, None]) -> dict[Node, Branch]:
    """Return the branch of each node outside the trunk; nodes joined by an edge share a branch.

    Sets are joined by the union-find algorithm.
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
    """Return the representative of a node's set, and shorten the path to it."""
    while above[node] is not node:
        above[node] = node = above[above[node]]
    return node
