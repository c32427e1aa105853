# SPDX-License-Identifier: Apache-2.0
"""One step of a model: look at the batch, agree, run the pipeline, give everybody the results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.core.schedule import Schedule
from smdist.modelparallel.torch.comm import share
from smdist.modelparallel.torch.executor import Arguments, Executor, Roots
from smdist.modelparallel.torch.parallel.agreement import (
    DifferenceError,
    agree,
    checksum,
    described,
)
from smdist.modelparallel.torch.parallel.cut import Split, forward_only
from smdist.modelparallel.torch.parallel.first import cut_for_work
from smdist.modelparallel.torch.parallel.freezing import settle
from smdist.modelparallel.torch.parallel.looking import Seen, look
from smdist.modelparallel.torch.parallel.reducing import Hooks, complete
from smdist.modelparallel.torch.parallel.state import State, probe
from smdist.modelparallel.torch.parallel.work import Scene, Work
from smdist.modelparallel.torch.tree import map_leaves

_NO_BACKWARD: Final = (
    "{} trained nothing: it ran in training with gradients enabled, and never called"
    " model.backward(loss). Call it in the step, or evaluate under torch.no_grad()"
)


def run(state: State, work: Work, *, parts: int | None = None) -> list[Any]:
    """Run one step on all ranks.

    Args:
        parts: How many microbatches go through, forward only; None for a step as planned.

    Returns:
        What the function returned for each microbatch: the same on all ranks of the pipeline.

    Raises:
        OptionError: The batch cannot be cut, or ranks are about to do different things.
        StepError: Something failed on some rank.
    """
    state.check_caught_up()
    axis = Axis.WORLD if parts is None and torch.is_grad_enabled() else Axis.PP
    if state.split is None:
        cut_for_work(state, work)
    assert state.split is not None
    split = state.split
    count = split.plan.num_microbatches if parts is None else parts
    seen, pieces = _agreed(state, work, count, axis)
    split.captured, split.placement = seen.captured, seen.placement
    feed = _UserCode(state, work, pieces)
    if seen.has_gradients and parts is None:
        if split.skeleton.training:
            state.steps.begin(work.size() * split.groups.rdp_size)
        results = _train(state, split, feed, count)
        if results is not None and split.skeleton.training and not feed.has_roots:
            warnings.warn(_NO_BACKWARD.format(work.name), stacklevel=2)
    else:
        executor = _executor(state, split, None if parts is None else count)
        repeat = state.next_repeat()
        draws = partial(state.draws, count=count, repeat=repeat)
        results = executor.run(feed, draws=draws, backward=False)
        split.replicas.rest()
    split.mirror.let_go()
    return _shared(split, results)


def _agreed(state: State, work: Work, count: int, axis: Axis) -> tuple[Seen, list[Arguments]]:
    """The same, where ranks have frozen parameters of theirs since the last step, too."""
    try:
        return _looked(state, work, count, axis)
    except DifferenceError:
        assert state.split is not None
        if not settle(state.split, axis):
            raise
    return _looked(state, work, count, axis)


def _looked(state: State, work: Work, count: int, axis: Axis) -> tuple[Seen, list[Arguments]]:
    """What every rank of the pipeline is about to do; none goes on if a rank asked cannot."""
    split = state.split
    assert split is not None
    fault: BaseException | None = None
    seen, pieces, said, told = None, [], {}, ""
    try:
        pieces = work.cut(count)
        seen = probe(state, work, pieces[0], lambda arguments: look(split, arguments))
        said = {"inputs": described(work.inputs), "model": f"{count} x {seen.text}"}
        told = repr(said)
        said["data"] = "" if told in split.compared else checksum(work.inputs)
        if axis is Axis.WORLD and seen.has_gradients:
            state.check_size(work.size())
    except BaseException as error:  # whatever it is, others wait for this rank
        fault = error
    agree(split.groups, axis, said, fault)
    assert seen is not None
    split.compare(told)
    split.agreed = split.frozen()
    return seen, pieces


class _UserCode:
    """The user's code as an executor's feed, one microbatch at a time.

    Attributes:
        has_roots: Whether a backward pass has started in it.
    """

    def __init__(self, state: State, work: Work, pieces: list[Arguments]) -> None:
        self._state, self._work, self._pieces = state, work, pieces
        self._scale = 1.0 / len(pieces) if state.settings.averages else 1.0
        self.has_roots = False

    def __call__(self, microbatch: int, call: Callable[[Arguments], Any]) -> tuple[Any, Roots]:
        scene = Scene(answer=call, scale=self._scale)
        args, kwargs = self._pieces[microbatch]
        with self._state.acting(scene):
            result = self._work.function(*args, **kwargs)
        self.has_roots |= bool(scene.roots)
        return (_detached(result) if self._work.detaches else result), scene.roots


def _train(state: State, split: Split, feed: Any, count: int) -> list[Any] | None:
    """Forward and backward."""
    with complete(state, split):
        executor = _executor(state, split, None)
        if state.settings.broadcasts_buffers:
            with executor.guarded("the sharing of buffers"):
                split.replicas.share_buffers()
        return executor.run(feed, draws=lambda at: state.draws(at, count), backward=True)


def _executor(state: State, split: Split, parts: int | None) -> Executor:
    """The one of the plan's schedule, or one that goes forward only."""

    def schedule() -> Schedule:
        return split.plan.actions if parts is None else forward_only(split.plan, parts)

    return split.executor(parts, schedule, Hooks(state))


def _detached(result: Any) -> Any:
    return map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, result)


def _shared(split: Split, results: list[Any] | None) -> list[Any]:
    """The results of the last stage's rank, on all ranks of the pipeline."""
    if split.groups.pp_size > 1:
        with split.guarded("the sharing of results"):
            results = share(results, split.last_rank, split.groups.of(Axis.PP))
    assert results is not None
    return results
