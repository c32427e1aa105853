# SPDX-License-Identifier: Apache-2.0
"""Run the two halves: I in one pass of torch's engine, W branch by branch."""

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
    """Start of a backward pass, and the gradient there."""

    at: Tensor | GradientEdge
    gradient: Tensor | None


@dataclass(slots=True, eq=False)
class _Waiting:
    """Branch that runs in W.

    Attributes:
        starts: Starts whose gradients are known.
        missing: Number of trunk gradients that are still to be computed.
    """

    starts: list[_Start] = field(default_factory=list)
    missing: int = 0


@dataclass(slots=True, eq=False)
class _Left:
    """Gradients that one node of the trunk left out in I, and the branches that they go to."""

    compute: Gradients | None
    targets: Mapping[int, tuple[GradientEdge, _Waiting]]


class Rest:
    """Rest of a backward pass after I."""

    def __init__(self, waiting: Sequence[_Waiting] = (), left: Sequence[_Left] = ()) -> None:
        self._ready = [branch for branch in waiting if not branch.missing]
        self._left = deque(left)

    def backward_parameters(self) -> None:
        """Run W: add to `grad` of all parameters that I left out, and free the tensors for W."""
        ready, self._ready = self._ready, []
        held_bytes = 0
        while self._left:
            branches, num_bytes = _fed(self._left.popleft())
            ready += branches
            held_bytes += num_bytes
            if held_bytes > _TOGETHER_BYTES:
                _run(ready)
                ready, held_bytes = [], 0
        _run(ready)


def backward_inputs(roots: Roots, inputs: Sequence[Tensor]) -> tuple[list[Tensor | None], Rest]:
    """Run I.

    Args:
        roots: Starts of the backward pass, with gradients; None stands for 1, at a scalar.
        inputs: Inputs of the stage, leaves of the graph; those that require no gradient get None.

    Returns:
        The gradients of the inputs, None for an input that no gradient reached, and the rest.
        Parameters whose gradients cannot wait have them in `grad` already.

    Raises:
        OptionError: An input is no leaf.
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
    for number, each in enumerate(inputs):
        if not each.is_leaf:
            raise OptionError(
                f"input {number} of a stage is the result of {each.grad_fn}",
                "a stage's backward pass ends at its inputs",
                "Detach it",
            )


def _whole(starts: Sequence[_Start]) -> Rest:
    """Run the whole backward pass now, for a graph that cannot be run in parts."""
    _backward(starts)
    return Rest()


def _split(starts: Sequence[_Start], inputs: Sequence[Tensor], found: Survey) -> Rest:
    waiting = {
        branch: _Waiting() for branch in dict.fromkeys(found.branch_of.values()) if branch.can_wait
    }
    now: list[_Start] = []
    for start in starts:
        branch = found.branch_of.get(_node(start))
        if branch in waiting:
            waiting[branch].starts.append(_waiting(start))
        else:
            now.append(start)
    leaves = [leaf for branch in _others(found, waiting) for leaf in branch.leaves]
    with _leaving_out(waiting) as left:
        _backward(now, [*inputs, *leaves])
    return Rest(list(waiting.values()), left)


def _others(found: Survey, waiting: Mapping[Branch, _Waiting]) -> Iterator[Branch]:
    return (each for each in dict.fromkeys(found.branch_of.values()) if each not in waiting)


def _node(start: _Start) -> Node:
    edge = start.at if isinstance(start.at, GradientEdge) else get_gradient_edge(start.at)
    return edge.node


def _waiting(start: _Start) -> _Start:
    """Return the start without the tensor's values, which W does not need."""
    if start.gradient is None or not isinstance(start.at, Tensor):
        return start
    return _Start(get_gradient_edge(start.at), start.gradient)


@contextmanager
def _leaving_out(waiting: Mapping[Branch, _Waiting]) -> Iterator[list[_Left]]:
    """While the trunk runs, record the gradients that its nodes leave out for waiting branches."""
    by_node: dict[Node, list[tuple[BranchEntry, _Waiting]]] = {}
    for branch, each in waiting.items():
        for entry in branch.entries:
            by_node.setdefault(entry.node, []).append((entry, each))
            each.missing += 1
    left: list[_Left] = []
    handles = []
    for node, entries in by_node.items():
        targets = {entry.argument: (entry.target, each) for entry, each in entries}
        handles.append(node.register_prehook(partial(_note, node, targets, left)))
    try:
        yield left
    finally:
        for handle in handles:
            handle.remove()


def _note(
    node: Node,
    targets: Mapping[int, tuple[GradientEdge, _Waiting]],
    left: list[_Left],
    gradients: tuple[Any, ...],
) -> None:
    (gradient,) = gradients
    compute = None if gradient is None else later(node, gradient, targets)
    left.append(_Left(compute, targets))


def _fed(left: _Left) -> tuple[list[_Waiting], int]:
    """Compute left-out gradients; return the branches that are complete, and the bytes computed."""
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
    """Return a gradient summed over broadcast dimensions, in the type of its tensor."""
    expected = target.node._input_metadata[target.output_nr]
    if gradient.shape != expected.shape:
        gradient = gradient.sum_to_size(expected.shape)
    return gradient.to(expected.dtype)


def _run(branches: Sequence[_Waiting]) -> None:
    _backward([start for branch in branches for start in branch.starts])
    for branch in branches:
        branch.starts.clear()


def _backward(starts: Sequence[_Start], inputs: Sequence[Tensor] | None = None) -> None:
    if starts and inputs != []:
        tensors: Any = [start.at for start in starts]  # tensors and edges, mixed
        torch.autograd.backward(tensors, [start.gradient for start in starts], inputs=inputs)
