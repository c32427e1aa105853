# SPDX-License-Identifier: Apache-2.0
"""Halves of a stage's backward pass: I for gradients of inputs, W for gradients of parameters.

I runs autograd from the stage's outputs to its inputs. W runs the parts of the autograd graph that
lead only to parameters. These parts are called branches.
"""

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
Starts = Sequence[tuple[Tensor | GradientEdge, Tensor | None]]


class _Start(NamedTuple):
    """Place where a backward pass starts.

    Attributes:
        at: Tensor to start from, or its gradient edge.
        gradient: Gradient of the tensor; None stands for 1.
    """

    at: Tensor | GradientEdge
    gradient: Tensor | None


@dataclass(slots=True, eq=False)
class _DelayedBranch:
    """Part of an autograd graph that leads only to parameters, and runs after the rest.

    Attributes:
        starts: Places where the backward pass of this part starts, with their gradients.
        missing: Number of gradients that are not in `starts` yet.
    """

    starts: list[_Start] = field(default_factory=list)
    missing: int = 0


@dataclass(slots=True, eq=False)
class _SkippedGradients:
    """Gradients that one autograd node does not compute now, but later.

    Attributes:
        compute: Function that computes these gradients, and returns them by number of the node's
            argument. None if there are no gradients to compute.
        targets: Receiver of each gradient, by number of the node's argument.
    """

    compute: Gradients | None
    targets: Mapping[int, tuple[GradientEdge, _DelayedBranch]]


class Rest:
    """Second half (W) of a backward pass, which computes gradients of parameters.

    Args:
        waiting: Parts of the autograd graph that lead only to parameters.
        left: Gradients that the first half has not computed, and that these parts need.
    """

    def __init__(
        self, waiting: Sequence[_DelayedBranch] = (), left: Sequence[_SkippedGradients] = ()
    ) -> None:
        self._ready = [branch for branch in waiting if not branch.missing]
        self._left = deque(left)

    def backward_parameters(self) -> None:
        """Compute the gradients that the first half left out, and add them to `grad` of parameters.

        The tensors that were kept for this are freed.
        """
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


def backward_inputs(roots: Starts, inputs: Sequence[Tensor]) -> tuple[list[Tensor | None], Rest]:
    """Run the first half (I) of a backward pass: compute the gradients of a stage's inputs.

    Args:
        roots: (tensor, gradient) pairs from which the backward pass starts; the gradient None
            stands for 1. In place of a tensor there may be its gradient edge.
        inputs: Inputs of the stage, which must be leaves of the autograd graph.

    Returns:
        Gradient of each input (None for an input without a gradient), and the second half, to be
        run later. Gradients of parameters that cannot be delayed are already in `grad`.

    Raises:
        OptionError: An input is not a leaf.
    """
    wanted = [each for each in inputs if each.requires_grad]
    _check_leaves(wanted)
    starts = [_Start(*root) for root in roots if _needs_gradient(root[0])]
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


def _needs_gradient(root: Tensor | GradientEdge) -> bool:
    return isinstance(root, GradientEdge) or root.requires_grad


def _check_leaves(inputs: Sequence[Tensor]) -> None:
    """Raise an OptionError if an input of a stage is not a leaf of the autograd graph."""
    for number, each in enumerate(inputs):
        if not each.is_leaf:
            raise OptionError(
                f"input {number} of a stage is the result of {each.grad_fn}",
                "a stage's backward pass must end at its inputs",
                "Pass input.detach().requires_grad_()",
                about=("inputs", number),
            )


def _whole(starts: Sequence[_Start]) -> Rest:
    """Run the whole backward pass now, since its graph cannot be split.

    Args:
        starts: Places where the backward pass starts.

    Returns:
        Second half of the backward pass, in which nothing is left to run.
    """
    _backward(starts)
    return Rest()


def _split(starts: Sequence[_Start], inputs: Sequence[Tensor], found: Survey) -> Rest:
    """Run the first half of a backward pass: all except the branches that can be delayed.

    A branch is a part of the autograd graph that leads only to parameters.

    Args:
        starts: Places where the backward pass starts.
        inputs: Inputs of the stage that need gradients.
        found: Division of the autograd graph into branches and the nodes that lead to inputs.

    Returns:
        Second half, which runs the delayed branches.
    """
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
    """Return the branches of an autograd graph that are not in `waiting`.

    A branch is a part of the graph that leads only to parameters.

    Args:
        found: Division of the graph, with all its branches.
        waiting: Branches to leave out.
    """
    return (each for each in dict.fromkeys(found.branch_of.values()) if each not in waiting)


def _node(start: _Start) -> Node:
    """Return the autograd node of the tensor or edge where a backward pass starts."""
    edge = start.at if isinstance(start.at, GradientEdge) else get_gradient_edge(start.at)
    return edge.node


def _without_values(start: _Start) -> _Start:
    """Return `start` with a gradient edge in place of the tensor, so that the tensor can be freed.

    If the gradient in `start` is None, `start` itself is returned.
    """
    if start.gradient is None or not isinstance(start.at, Tensor):
        return start
    return _Start(get_gradient_edge(start.at), start.gradient)


@contextmanager
def _skipping(waiting: Mapping[Branch, _DelayedBranch]) -> Iterator[list[_SkippedGradients]]:
    """Record the gradients that autograd leaves out within the block.

    Args:
        waiting: Parts of the autograd graph that will run later.

    Yields:
        List of the gradients left out, one item for each autograd node; filled within the block.
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
    """Append the gradients that an autograd node does not compute now to the list `left`.

    Autograd calls this function just before it runs the node.

    Args:
        node: Node that is about to run.
        targets: Receiver of each gradient left out, by number of the node's argument.
        left: List to append to.
        gradients: Tuple of one item: the gradient of the node's result, or None.
    """
    (gradient,) = gradients
    compute = None if gradient is None else later(node, gradient, targets)
    left.append(_SkippedGradients(compute, targets))


def _computed(left: _SkippedGradients) -> tuple[list[_DelayedBranch], int]:
    """Compute the gradients that one autograd node left out, and pass them to their receivers.

    Args:
        left: Gradients that the node left out.

    Returns:
        Parts of the graph that can run now, and the number of bytes of the gradients.
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
    """Convert a gradient to the shape and dtype that the next autograd node expects.

    The gradient is summed over the dimensions that the operation has broadcast.

    Args:
        gradient: Gradient as the operation computed it.
        target: Edge to the node that receives the gradient.
    """
    expected = target.node._input_metadata[target.output_nr]
    if gradient.shape != expected.shape:
        gradient = gradient.sum_to_size(expected.shape)
    return gradient.to(expected.dtype)


def _run(branches: Sequence[_DelayedBranch]) -> None:
    """Run the backward passes of branches in one call of autograd, then free their gradients.

    Args:
        branches: Parts of the autograd graph that lead only to parameters.
    """
    _backward([start for branch in branches for start in branch.starts])
    for branch in branches:
        branch.starts.clear()


def _backward(starts: Sequence[_Start], inputs: Sequence[Tensor] | None = None) -> None:
    """Run torch's backward pass; do nothing if `starts` or `inputs` is empty.

    Args:
        starts: Places where the backward pass starts, with their gradients.
        inputs: Leaf tensors whose gradients are computed; None for all leaves.
    """
    if starts and inputs != []:
        tensors: Any = [start.at for start in starts]  # tensors and edges, mixed
        torch.autograd.backward(tensors, [start.gradient for start in starts], inputs=inputs)
