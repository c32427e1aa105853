# SPDX-License-Identifier: Apache-2.0
"""The two halves of a backward pass: I in one run of autograd, W branch by branch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from sagemaker_dist.errors import OptionError
from smdist.modelparallel.torch.executor.split_backward.branches import (
    Branch,
    BranchEntry,
    Survey,
    survey,
)
from smdist.modelparallel.torch.executor.split_backward.product_gradients import Gradients, later

# gradients that W collects for one pass of the engine, since each pass costs 50 us
_TOGETHER_BYTES: Final = 4 << 20

Roots = list[tuple[Tensor, Tensor | None]]


class _Start(NamedTuple):
    """Tensor or edge where a backward pass starts, and its gradient; None stands for 1."""

    at: Tensor | GradientEdge
    gradient: Tensor | None


@dataclass(slots=True, eq=False)
class _DelayedBranch:
    """Branch of the graph whose backward pass runs in W.

    Attributes:
        starts: Starts of its backward pass whose gradients are known.
        missing: Number of starts whose gradients are still to be computed.
    """

    starts: list[_Start] = field(default_factory=list)
    missing: int = 0


@dataclass(slots=True, eq=False)
class _SkippedGradients:
    """Gradients that one node of the trunk did not compute in I.

    Attributes:
        compute: Function that computes them by argument; None if the node got no gradient.
        targets: Start and branch for each argument.
    """

    compute: Gradients | None
    targets: Mapping[int, tuple[GradientEdge, _DelayedBranch]]


class Rest:
    """Second half (W) of a backward pass: gradients of parameters.

    Args:
        waiting: Branches that run in W.
        left: Gradients at the starts of these branches, in the order in which nodes ran.
    """

    def __init__(
        self, waiting: Sequence[_DelayedBranch] = (), left: Sequence[_SkippedGradients] = ()
    ) -> None:
        self._ready = [branch for branch in waiting if not branch.missing]
        self._left = deque(left)

    def backward_parameters(self) -> None:
        """Run W: add the remaining gradients to `grad` of parameters, and free the tensors of W."""
        ready, self._ready = self._ready, []
        held_bytes = 0
        while self._left:
            branches, num_bytes = _computed(self._left.popleft())
            ready += branches
            held_bytes += num_bytes
            if held_bytes > _TOGETHER_BYTES:
                _run(ready)
                ready, held_bytes = [], 0
        _run(ready)


def backward_inputs(roots: Roots, inputs: Sequence[Tensor]) -> tuple[list[Tensor | None], Rest]:
    """Run the first half (I): compute the gradients of the inputs.

    Args:
        roots: Tensors where the backward pass starts, with their gradients; None stands for 1.
        inputs: Inputs of the stage, which must be leaves of the graph.

    Returns:
        Gradients of the inputs, None for an input without one; and the second half. Gradients of
        parameters that cannot be delayed are in `grad` already.

    Raises:
        OptionError: An input is not a leaf.
    """
    wanted = [each for each in inputs if each.requires_grad]
    _check_leaves(wanted)
    starts = [_Start(*root) for root in roots if root[0].requires_grad]
    nodes = [get_gradient_edge(each).node for each in wanted]
    found = survey([_node(start) for start in starts], frozenset(nodes))
    before = [each.grad for each in inputs]
    for each in inputs:
        each.grad = None
    try:
        rest = _split(starts, wanted, found) if found.can_split else _whole(starts)
        return [each.grad for each in inputs], rest
    finally:
        for each, gradient in zip(inputs, before, strict=True):
            each.grad = gradient


def _check_leaves(inputs: Sequence[Tensor]) -> None:
    """Raise OptionError if an input is the result of an operation."""
    for number, each in enumerate(inputs):
        if not each.is_leaf:
            raise OptionError(
                f"input {number} of a stage is the result of {each.grad_fn}",
                "a stage's backward pass must end at its inputs",
                "Pass input.detach().requires_grad_()",
                about="inputs",
            )


def _whole(starts: Sequence[_Start]) -> Rest:
    """Run the whole backward pass now, for a graph that cannot be split; nothing remains for W."""
    _backward(starts)
    return Rest()


def _split(starts: Sequence[_Start], inputs: Sequence[Tensor], found: Survey) -> Rest:
    """Run the trunk and the branches that cannot be delayed; return the other branches as W."""
    waiting = {
        branch: _DelayedBranch()
        for branch in dict.fromkeys(found.branch_of.values())
        if branch.can_wait
    }
    now: list[_Start] = []
    for start in starts:
        branch = found.branch_of.get(_node(start))
        if branch in waiting:
            waiting[branch].starts.append(_without_values(start))
        else:
            now.append(start)
    leaves = [leaf for branch in _others(found, waiting) for leaf in branch.leaves]
    with _skipping(waiting) as left:
        _backward(now, [*inputs, *leaves])
    return Rest(list(waiting.values()), left)


def _others(found: Survey, waiting: Mapping[Branch, _DelayedBranch]) -> Iterator[Branch]:
    """Return the branches that are not delayed."""
    return (each for each in dict.fromkeys(found.branch_of.values()) if each not in waiting)


def _node(start: _Start) -> Node:
    """Return the node of the autograd graph at a start."""
    edge = start.at if isinstance(start.at, GradientEdge) else get_gradient_edge(start.at)
    return edge.node


def _without_values(start: _Start) -> _Start:
    """Replace the tensor of a start by its gradient edge, so that its memory can be freed."""
    if start.gradient is None or not isinstance(start.at, Tensor):
        return start
    return _Start(get_gradient_edge(start.at), start.gradient)


@contextmanager
def _skipping(waiting: Mapping[Branch, _DelayedBranch]) -> Iterator[list[_SkippedGradients]]:
    """Record, while the trunk runs in the block, the gradients that delayed branches need later.

    Yields:
        List that is filled as nodes of the trunk run.
    """
    by_node: dict[Node, list[tuple[BranchEntry, _DelayedBranch]]] = {}
    for branch, each in waiting.items():
        for entry in branch.entries:
            by_node.setdefault(entry.node, []).append((entry, each))
            each.missing += 1
    left: list[_SkippedGradients] = []
    handles = []
    for node, entries in by_node.items():
        targets = {entry.argument: (entry.target, each) for entry, each in entries}
        handles.append(node.register_prehook(partial(_record, node, targets, left)))
    try:
        yield left
    finally:
        for handle in handles:
            handle.remove()


def _record(
    node: Node,
    targets: Mapping[int, tuple[GradientEdge, _DelayedBranch]],
    left: list[_SkippedGradients],
    gradients: tuple[Any, ...],
) -> None:
    """Add to `left` the gradients that a node skips; autograd calls this before it runs the node.

    Args:
        targets: Start and branch of each skipped argument.
        gradients: Gradient of the node's only result, or None.
    """
    (gradient,) = gradients
    compute = None if gradient is None else later(node, gradient, targets)
    left.append(_SkippedGradients(compute, targets))


def _computed(left: _SkippedGradients) -> tuple[list[_DelayedBranch], int]:
    """Compute the skipped gradients of one node, and add them to the branches that they start.

    Returns:
        Branches whose starts are complete now, and the number of bytes of the gradients.
    """
    found: dict[int, Tensor] = {}
    if left.compute is not None:
        with torch.no_grad():
            found = left.compute()
    ready = []
    for argument, (target, branch) in left.targets.items():
        if argument in found:
            branch.starts.append(_Start(target, _fitting(found[argument], target)))
        branch.missing -= 1
        if not branch.missing:
            ready.append(branch)
    return ready, sum(each.nbytes for each in found.values())


def _fitting(gradient: Tensor, target: GradientEdge) -> Tensor:
    """Convert a gradient to the shape and dtype of its tensor: sum over broadcast dimensions."""
    expected = target.node._input_metadata[target.output_nr]
    if gradient.shape != expected.shape:
        gradient = gradient.sum_to_size(expected.shape)
    return gradient.to(expected.dtype)


def _run(branches: Sequence[_DelayedBranch]) -> None:
    """Run the backward pass of complete branches together, and drop their starts."""
    _backward([start for branch in branches for start in branch.starts])
    for branch in branches:
        branch.starts.clear()


def _backward(starts: Sequence[_Start], inputs: Sequence[Tensor] | None = None) -> None:
    """Run torch's backward pass; with `inputs`, compute the gradients of these tensors alone."""
    if starts and inputs != []:
        tensors: Any = [start.at for start in starts]  # tensors and edges, mixed
        torch.autograd.backward(tensors, [start.gradient for start in starts], inputs=inputs)
