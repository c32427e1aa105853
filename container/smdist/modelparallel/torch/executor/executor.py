# SPDX-License-Identifier: Apache-2.0
"""Runs a schedule: one rank's actions, one after the other, with messages in between.

    post what the next action reads, wait for what this one reads, compute, send

Nothing of a microbatch outlives its backward pass. A failure anywhere ends the step on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.executor.alarm import Alarm
from smdist.modelparallel.torch.executor.course import Course
from smdist.modelparallel.torch.executor.errors import LostError
from smdist.modelparallel.torch.executor.feed import Feed
from smdist.modelparallel.torch.executor.ledger import Ledger
from smdist.modelparallel.torch.executor.post import Post
from smdist.modelparallel.torch.executor.step import OnEvent, StageHooks, Step, Tools
from smdist.modelparallel.torch.executor.traffic import Traffic
from smdist.modelparallel.torch.executor.where import module_of
from smdist.modelparallel.torch.executor.wiring import Wiring
from smdist.modelparallel.torch.program import Program
from smdist.modelparallel.torch.randomness import Draws, generators_kept
from smdist.modelparallel.torch.stage import StageModule


class Executor:
    """Runs the stages of one rank.

    Args:
        stages: This rank's, by number: all that the schedule puts here.
        placement: Where everything runs.
        schedule: What each rank does, in order.
        group: Its ranks are those of the pipeline, in order; any backend with tags.
        hooks: Called around backward actions.
        on_event: Called after each action and wait, with kind, stage, microbatch, start and end in
            seconds of `time.perf_counter`, and detail. Kinds: F, B, I, W; "recv", which waits for
            what the action reads, and "send", which is a part of the action.

    Attributes:
        on_event: May be set between steps.
        ledger: Buffers and held microbatches, now and at most.

    Raises:
        OptionError: Stages, placement, schedule and group do not fit together.
    """

    def __init__(
        self,
        stages: Mapping[int, StageModule],
        placement: Placement,
        schedule: Schedule,
        group: dist.ProcessGroup,
        *,
        hooks: StageHooks | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        raise_all(_faults(stages, placement, schedule, group))
        self._stages, self._schedule, self._group = dict(stages), schedule, group
        self._hooks, self.on_event = hooks, on_event
        self._rank = dist.get_rank(group)
        self._alarm = Alarm(group)
        self._courses: dict[Any, Course] = {}
        self._serve(next(iter(self._stages.values())).program, placement)
        self.ledger = Ledger()

    def adopt(self, captured: Captured, placement: Placement) -> None:
        """Run another program from now on: the same units, for inputs of other shapes or in
        another mode.

        Raises:
            OptionError: It needs modules that are not on this rank.
        """
        raise_all(_faults(self._stages, placement, self._schedule, self._group))
        for stage in self._stages.values():
            stage.serve(captured, placement)
        self._serve(captured.program, placement)

    def run(self, feed: Feed, *, draws: Callable[[int], Draws], backward: bool) -> list[Any] | None:
        """Run one step.

        Args:
            feed: The user's code around the model, for one microbatch.
            draws: Where random numbers come from, by microbatch.
            backward: Without, only forward passes run, and nothing is kept.

        Returns:
            On the rank of the last stage what the feed returned, by microbatch; None elsewhere.

        Raises:
            StepError: Something failed here or on another rank.
        """
        course = self._course(backward)
        post = Post(self._group, self.ledger)
        traffic = Traffic(post, self._wiring, course.window)
        step = Step(self._tools(), course, traffic, keeps=backward)
        with self._ending(step), generators_kept():
            step.run(feed, draws)
            post.flush()
            post.meet()  # the step has ended on all ranks, or on none
        if self._schedule.rank_of[-1] != self._rank:
            return None
        return [step.results[each] for each in range(self._schedule.num_microbatches)]

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """An exception within ends what all ranks do, as one in a step does.

        Args:
            doing: What this rank does there, outside of actions: "the sum of gradients".

        Raises:
            StepError: In place of any exception; the one of another rank, if that is the cause.
        """
        try:
            yield
        except BaseException as error:
            raise self._alarm.error(error, doing, module_of(error, None)) from error

    def _tools(self) -> Tools:
        return Tools(
            stages=self._stages,
            wiring=self._wiring,
            ledger=self.ledger,
            hooks=self._hooks,
            on_event=self.on_event,
        )

    @contextmanager
    def _ending(self, step: Step) -> Iterator[None]:
        """An exception within ends the step on all ranks."""
        try:
            yield
        except BaseException as error:
            action = str(step.action) if step.action is not None else "the end of the step"
            stage = self._stages[step.action.stage] if step.action is not None else None
            is_forward = step.action is None or step.action.do is Do.F
            module = module_of(error, stage, is_forward=is_forward)
            told = self._alarm.error(error, action, module)
            cause = error.cause if isinstance(error, LostError) else error
            raise told from cause

    def _serve(self, program: Program, placement: Placement) -> None:
        rank_of, microbatches = self._schedule.rank_of, self._schedule.num_microbatches
        self._wiring = Wiring(placement, program.facts, rank_of, microbatches)
        self._placement = placement

    def _course(self, backward: bool) -> Course:
        """Worked out once for all placements that have edges between the same stages."""
        edges = self._placement.edges
        key = backward, frozenset((e.source, e.target, e.has_gradient) for e in edges)
        if key not in self._courses:
            self._courses[key] = Course.of(self._schedule, self._rank, edges, backward=backward)
        return self._courses[key]


def _faults(
    stages: Mapping[int, StageModule],
    placement: Placement,
    schedule: Schedule,
    group: dist.ProcessGroup,
) -> Iterator[OptionError]:
    size = dist.get_world_size(group)
    if size != schedule.num_ranks:
        yield OptionError(
            f"the schedule is for {schedule.num_ranks} ranks",
            f"the pipeline's group has {size}",
            "Make a schedule with num_ranks as large as the group",
        )
        return
    if placement.num_stages != schedule.num_stages:
        yield OptionError(
            f"the schedule has {schedule.num_stages} stages",
            f"the model is placed on {placement.num_stages}",
            "Place the model on as many stages as the schedule has",
        )
        return
    wanted = schedule.stages_of[dist.get_rank(group)]
    if tuple(sorted(stages)) != wanted:
        yield OptionError(
            f"the stages here are {sorted(stages)}",
            f"the schedule has {list(wanted)} on pipeline rank {dist.get_rank(group)}",
            "Pass a StageModule for each of these",
        )
