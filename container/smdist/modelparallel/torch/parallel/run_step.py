# SPDX-License-Identifier: Apache-2.0
"""One step of a model: check that ranks agree, run the pipeline, and broadcast the results.

`complete` and `GradientHooks` reduce gradients over replicas. If gradients of several steps are
summed first, only the last of these steps reduces them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Final

import torch
from torch import Tensor

from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.core.record import REDUCE
from smdist.modelparallel.core.schedule import Action, Do, Schedule
from smdist.modelparallel.torch.accelerator import current_device
from smdist.modelparallel.torch.executor import Arguments, Executor, Roots
from smdist.modelparallel.torch.parallel.call_agreement import (
    CapturedCall,
    DifferenceError,
    agree,
    find_capture,
    sync_frozen,
)
from smdist.modelparallel.torch.parallel.first_step import cut_for_step
from smdist.modelparallel.torch.parallel.model_state import ModelState, PartitionedModel, probe
from smdist.modelparallel.torch.parallel.plan_comparison import CHECK_STEP, FIRST_RECORDED
from smdist.modelparallel.torch.parallel.precision import loss_scale
from smdist.modelparallel.torch.parallel.step_function import MicrobatchCall, StepFunction
from smdist.modelparallel.torch.program.pytree import checksum, described, map_leaves
from smdist.modelparallel.torch.session.object_collectives import broadcast_object
from smdist.modelparallel.torch.tensor_splits import whole_logits

_NO_BACKWARD: Final = (
    "{} trained nothing: the model was in training mode and gradients were enabled, but the"
    " function did not call model.backward(loss). Call it in the step function, or run the step"
    " under torch.no_grad() to evaluate"
)


def run(state: ModelState, step_function: StepFunction, *, parts: int | None = None) -> list[Any]:
    """Run one step on all ranks, with backward passes if gradients are enabled.

    Args:
        state: State of the parallel model.
        step_function: User's code of the step, with its batch.
        parts: Number of microbatches, for a step without backward passes. None uses the plan's
            number of microbatches.

    Returns:
        Result of the user's code for each microbatch, the same on all ranks of the pipeline.

    Raises:
        OptionError: The batch cannot be split into microbatches, or ranks of a pipeline called the
            model differently.
        StepError: An action failed on some rank.
    """
    state.check_caught_up()
    axis = Axis.WORLD if parts is None and torch.is_grad_enabled() else Axis.MP
    if state.split is None:
        cut_for_step(state, step_function)
    assert state.split is not None
    split = state.split
    count = split.plan.num_microbatches if parts is None else parts
    seen, pieces = _agreed_call(state, step_function, count, axis)
    split.captured, split.placement = seen.captured, seen.placement
    feed = _UserCode(state, step_function, pieces)
    if seen.has_gradients and parts is None:
        if split.skeleton.training:
            state.steps.begin(step_function.size() * split.groups.rdp_size)
        results = _train(state, split, feed, count)
        if results is not None and split.skeleton.training and not feed.has_roots:
            warnings.warn(_NO_BACKWARD.format(step_function.name), stacklevel=2)
    else:
        executor = _executor(state, split, None if parts is None else count)
        repeat = state.next_repeat()
        draws = partial(state.draws, count=count, repeat=repeat)
        results = executor.run(feed, draws=draws, backward=False)
        split.replicas.rest()
    split.skeleton_sync.ignore_changes()
    return _broadcast_results(split, results)


def _agreed_call(
    state: ModelState, step_function: StepFunction, count: int, axis: Axis
) -> tuple[CapturedCall, list[Arguments]]:
    """Return this rank's recorded forward pass and microbatches, if ranks agree on the call.

    If the ranks differ, changes of `requires_grad` are copied to other ranks, and the calls are
    compared once more.

    Args:
        state: State of the parallel model.
        step_function: User's code of the step, with its batch.
        count: Number of microbatches.
        axis: Ranks that compare: the world or this pipeline.
    """
    try:
        return _compared_call(state, step_function, count, axis)
    except DifferenceError:
        assert state.split is not None
        if not sync_frozen(state.split, axis):
            raise
    return _compared_call(state, step_function, count, axis)


def _compared_call(
    state: ModelState, step_function: StepFunction, count: int, axis: Axis
) -> tuple[CapturedCall, list[Arguments]]:
    """Find this rank's recorded forward pass and microbatches; check that other ranks agree.

    Args:
        state: State of the parallel model.
        step_function: User's code of the step, with its batch.
        count: Number of microbatches.
        axis: Ranks that compare: the world or this pipeline.
    """
    split = state.split
    assert split is not None
    fault: BaseException | None = None
    seen, pieces, descriptions, text = None, [], {}, ""
    try:
        pieces = step_function.cut(count)
        seen = probe(
            state, step_function, pieces[0], lambda arguments: find_capture(split, arguments)
        )
        inputs = described(step_function.inputs)
        descriptions = {"inputs": inputs, "model": f"{count} x {seen.text}"}
        text = repr(descriptions)
        # Ranks that share layers compute with batches of their own, which must never differ.
        is_trusted = split.tensor_plan is None and text in split.compared_calls
        descriptions["data"] = "" if is_trusted else checksum(step_function.inputs)
        if axis is Axis.WORLD and seen.has_gradients:
            state.check_size(step_function.size())
    except BaseException as error:  # any error, since other ranks wait for this one
        fault = error
    agree(split.groups, axis, descriptions, fault)
    assert seen is not None
    split.mark_compared(text)
    split.agreed_frozen = split.frozen()
    return seen, pieces


class _UserCode:
    """Function that runs the user's code of one microbatch; an executor calls it.

    Args:
        state: State of the parallel model.
        step_function: User's code of the step.
        pieces: Arguments of the user's code for each microbatch.

    Attributes:
        has_roots: True once the user's code has called `model.backward`.
    """

    def __init__(
        self, state: ModelState, step_function: StepFunction, pieces: list[Arguments]
    ) -> None:
        self._state, self._step_function, self._pieces = state, step_function, pieces
        self._scale = 1.0 / len(pieces) if state.settings.averages else 1.0
        if state.settings.fp16:
            self._scale *= loss_scale()
        self._splits_layers = state.split is not None and state.split.tensor_plan is not None
        self.has_roots = False

    def __call__(self, microbatch: int, call: Callable[[Arguments], Any]) -> tuple[Any, Roots]:
        microbatch_call = MicrobatchCall(answer=call, scale=self._scale)
        args, kwargs = self._pieces[microbatch]
        with self._state.acting(microbatch_call):
            result = self._step_function.function(*args, **kwargs)
            if self._splits_layers:
                result = whole_logits(result)
        self.has_roots |= bool(microbatch_call.roots)
        return (
            _detached(result) if self._step_function.detaches else result
        ), microbatch_call.roots


def _train(state: ModelState, split: PartitionedModel, feed: Any, count: int) -> list[Any] | None:
    """Run a step with forward and backward passes, and reduce gradients.

    Args:
        state: State of the parallel model.
        split: Stages of this rank.
        feed: Function that runs the user's code of one microbatch.
        count: Number of microbatches.

    Returns:
        Result of the user's code for each microbatch, on the rank of the last stage; None on other
        ranks.
    """
    comparison = state.plan_comparison
    comparison.num_steps += 1
    if comparison.num_steps == FIRST_RECORDED:
        comparison.begin(split.plan, split.groups, split.listeners)
    with complete(state, split):
        executor = _executor(state, split, None)
        if state.settings.broadcasts_buffers:
            with executor.guarded("the broadcast of buffers"):
                split.replicas.broadcast_buffers()
        results = executor.run(feed, draws=lambda at: state.draws(at, count), backward=True)
    if comparison.num_steps == CHECK_STEP:
        comparison.end(split.plan, split.groups, split.listeners, split.placement.edges)
    return results


@contextmanager
def complete(state: ModelState, split: PartitionedModel) -> Iterator[bool]:
    """Return a context for the backward passes of a step; on exit, gradients are reduced.

    If gradients of several steps are summed, only the last of these steps reduces gradients.

    Args:
        state: State of the parallel model.
        split: Stages of this rank, with their replicas.

    Yields:
        True if this step reduces gradients.
    """
    series = state.settings.passes_per_step
    if state.passes % series == 0:
        split.replicas.begin()
    state.passes += 1
    is_last = state.passes % series == 0
    yield is_last
    if is_last:
        begin = perf_counter()
        with split.guarded("the sum of gradients"):
            split.replicas.finish()
            if split.is_recorded and current_device() is not None:
                torch.accelerator.synchronize()  # the time is that of the device
        split.send_event(REDUCE, -1, -1, begin, perf_counter(), "")
    state.step_number += 1


class GradientHooks:
    """Functions that an executor calls before and after each backward action of a stage.

    The functions reduce gradients over replicas. If gradients of several steps are summed, only the
    last of these steps reduces gradients.
    """

    def __init__(self, state: ModelState) -> None:
        self._state = state

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Prepare a backward action of a stage for the reduction of gradients.

        Args:
            stage: Number of the stage.
            is_last: True if this is the stage's last backward action in the step.
        """
        assert self._state.split is not None
        self._state.split.replicas.hooks.before_backward(stage, is_last and self._reduces)

    def after_backward(self, stage: int, is_last: bool) -> None:
        """Start to reduce a stage's gradients after its last backward action in a step.

        If gradients of several steps are summed, only the last of these steps reduces gradients.

        Args:
            stage: Number of the stage.
            is_last: True if this was the stage's last backward action in the step.
        """
        assert self._state.split is not None
        self._state.split.replicas.hooks.after_backward(stage, is_last and self._reduces)

    @property
    def _reduces(self) -> bool:
        return self._state.passes % self._state.settings.passes_per_step == 0


def forward_only(plan: Plan, num_microbatches: int) -> Schedule:
    """Return a schedule with forward passes only.

    Each rank runs all microbatches through its first stage, then through its next stage.

    Args:
        plan: Plan with the stages of each rank.
        num_microbatches: Number of microbatches.
    """
    rank_of = plan.actions.rank_of
    orders = tuple(
        tuple(
            Action(Do.F, stage, microbatch)
            for stage in stages
            for microbatch in range(num_microbatches)
        )
        for stages in plan.actions.stages_of
    )
    return Schedule(
        name="forward", rank_of=rank_of, num_microbatches=num_microbatches, orders=orders
    )


def _executor(state: ModelState, split: PartitionedModel, parts: int | None) -> Executor:
    """Return the executor of a step; make it when it is first needed.

    Args:
        state: State of the parallel model.
        split: Stages of this rank.
        parts: Number of microbatches of a step without backward passes. None uses the plan's
            schedule, which has backward passes.
    """

    def schedule() -> Schedule:
        return split.plan.actions if parts is None else forward_only(split.plan, parts)

    return split.executor(parts, schedule, GradientHooks(state))


def _detached(result: Any) -> Any:
    """Return a nested result with all its tensors detached from the autograd graph."""
    return map_leaves(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, result)


def _broadcast_results(split: PartitionedModel, results: list[Any] | None) -> list[Any]:
    """Broadcast results from the rank of the last stage to all ranks of the pipeline.

    Args:
        split: Stages of this rank, with the process groups.
        results: Results on the rank of the last stage; ignored on other ranks.
    """
    if split.groups.pp_size > 1:
        with split.guarded("the broadcast of results"):
            results = broadcast_object(results, split.last_rank, split.groups.of(Axis.PP))
    assert results is not None
    return results
