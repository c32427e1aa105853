# SPDX-License-Identifier: Apache-2.0
"""Run a schedule: one rank's actions in order, with messages between them.

    post receives for the next action, wait for this action's values, compute, send

Nothing of a microbatch is kept after its backward pass. A failure on any rank ends the step on all
ranks; `module_of` finds the module that an exception comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch.distributed as dist
from torch import nn

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.schedule.actions import Do, Schedule
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.executor.failure_broadcast import Alarm
from smdist.modelparallel.torch.executor.p2p import P2P, MemoryCounter
from smdist.modelparallel.torch.executor.rank_schedule import RankSchedule
from smdist.modelparallel.torch.executor.rank_step import (
    Feed,
    OnEvent,
    RankStep,
    StageHooks,
    StepResources,
)
from smdist.modelparallel.torch.executor.stage_io import StageEdges, StageIO
from smdist.modelparallel.torch.executor.step_errors import LostError
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.program.program import Program
from smdist.modelparallel.torch.randomness import RngStream, generators_kept

_AROUND: Final = "code around the model"


def module_of(error: BaseException, stage: StageModule | None, *, is_forward: bool = True) -> str:
    """Return the unit that ran, or the module whose forward function ran, or a description."""
    if stage is None:
        return "the step"
    if stage.running is not None:
        return stage.running.module or stage.running.name
    return _in_traceback(error, stage) or (_AROUND if is_forward else _between(stage))


def _between(stage: StageModule) -> str:
    """Describe the part of a stage's backward pass that belongs to no unit."""
    units = stage.route.units
    return f"code around {units[0]} to {units[-1]}" if units else _AROUND


def _in_traceback(error: BaseException, stage: StageModule) -> str:
    """Return the unit whose function is on the stack, such as one that is recomputed."""
    units = {id(stage.unit(name)): name for name in stage.route.units}
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in units:
            return units[id(module)]
        trace = trace.tb_next
    return ""


class Executor:
    """Executor of the stages of one rank.

    Args:
        stages: This rank's stages by number; exactly those that the schedule assigns to it.
        placement: The stage of every call.
        schedule: The actions of each rank, in order.
        group: Process group of the pipeline's ranks, in order; any backend with tags.
        hooks: Called around backward actions.
        on_event: Called after each action and wait, with kind, stage, microbatch, start and end
            in seconds of `time.perf_counter`, and detail. Kinds: F, B, I, W; "recv", the wait for
            the values that the action reads; and "send", which is a part of the action.

    Attributes:
        on_event: As above; may be set between steps.
        memory: Message buffers and held microbatches: present amount and peak.

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
        self._rank_schedules: dict[Any, RankSchedule] = {}
        self._serve(next(iter(self._stages.values())).program, placement)
        self.memory = MemoryCounter()

    def adopt(self, captured: Captured, placement: Placement) -> None:
        """Run another program from now on: the same units, in another mode or for other shapes.

        Raises:
            OptionError: The program needs modules that are not on this rank.
        """
        raise_all(_faults(self._stages, placement, self._schedule, self._group))
        for stage in self._stages.values():
            stage.serve(captured, placement)
        self._serve(captured.program, placement)

    def run(
        self, feed: Feed, *, draws: Callable[[int], RngStream], backward: bool
    ) -> list[Any] | None:
        """Run one step.

        Args:
            feed: The user's code around the model, for one microbatch.
            draws: Returns the source of random numbers for a microbatch.
            backward: False: only forward passes run, and nothing is kept for backward passes.

        Returns:
            On the rank of the last stage, the results of the feed by microbatch; None elsewhere.

        Raises:
            StepError: An exception on this rank or another one.
        """
        rank_schedule = self._rank_schedule(backward)
        p2p = P2P(self._group, self.memory)
        stage_io = StageIO(p2p, self._stage_edges, rank_schedule.window)
        step = RankStep(self._resources(), rank_schedule, stage_io, keeps=backward)
        with self._ending(step), generators_kept():
            step.run(feed, draws)
            p2p.flush()
            p2p.meet()  # the step ends on all ranks, or on none
        if self._schedule.rank_of[-1] != self._rank:
            return None
        return [step.results[each] for each in range(self._schedule.num_microbatches)]

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """End the work of all ranks if an exception is raised within, as in a step.

        Args:
            doing: Description of this rank's work outside of actions: "the sum of gradients".

        Raises:
            StepError: In place of any exception; it describes another rank's if that is the cause.
        """
        try:
            yield
        except BaseException as error:
            raise self._alarm.error(error, doing, module_of(error, None)) from error

    def _resources(self) -> StepResources:
        return StepResources(
            stages=self._stages,
            stage_edges=self._stage_edges,
            memory=self.memory,
            hooks=self._hooks,
            on_event=self.on_event,
        )

    @contextmanager
    def _ending(self, step: RankStep) -> Iterator[None]:
        """End the step on all ranks if an exception is raised within."""
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
        self._stage_edges = StageEdges(placement, program.facts, rank_of, microbatches)
        self._placement = placement

    def _rank_schedule(self, backward: bool) -> RankSchedule:
        """Return the rank's schedule; placements with edges between the same stages share it."""
        edges = self._placement.edges
        key = backward, frozenset((e.source, e.target, e.has_gradient) for e in edges)
        if key not in self._rank_schedules:
            self._rank_schedules[key] = RankSchedule.of(
                self._schedule, self._rank, edges, backward=backward
            )
        return self._rank_schedules[key]


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
