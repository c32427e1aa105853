# SPDX-License-Identifier: Apache-2.0
"""Class `Executor`: runs the forward and backward passes of one rank's stages in a pipeline step.

A schedule lists the actions of each rank. An action is a forward or backward pass of one stage for
one microbatch. For each action, the executor

    1. posts the receives of the next action, so that its data arrives while this one computes
    2. waits for the values or gradients that this action reads
    3. computes
    4. sends the results to other stages

The data of a microbatch is freed after its backward pass. If one rank fails, the step ends on all
ranks with the same error.
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
from smdist.modelparallel.torch.accelerator import is_accelerator
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.executor.device_transfers import (
    DeviceTransfers,
    device_transfers,
)
from smdist.modelparallel.torch.executor.failure_broadcast import Alarm
from smdist.modelparallel.torch.executor.offload import ActivationOffload
from smdist.modelparallel.torch.executor.p2p import P2P, MemoryCounter
from smdist.modelparallel.torch.executor.rank_schedule import RankSchedule
from smdist.modelparallel.torch.executor.rank_step import Feed, RankStep
from smdist.modelparallel.torch.executor.receive_order import ReceiveOrder
from smdist.modelparallel.torch.executor.stage_edges import StageEdges
from smdist.modelparallel.torch.executor.stage_io import StageIO
from smdist.modelparallel.torch.executor.step_errors import LostError
from smdist.modelparallel.torch.executor.step_resources import OnEvent, StageHooks, StepResources
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.program.program import Program
from smdist.modelparallel.torch.randomness import RngStream, generators_kept

_USER_CODE: Final = "code around the model"


def module_of(error: BaseException, stage: StageModule | None, *, is_forward: bool = True) -> str:
    """Return the name of the module in which an error was raised, for the text of a StepError.

    If the error was raised outside of all modules, the result is a description such as "code around
    the model".

    Args:
        error: Error that was raised on this rank.
        stage: Stage that was running; None if no stage was running.
        is_forward: True if a forward pass was running, False for a backward pass.
    """
    if stage is None:
        return "the step"
    if stage.running is not None:
        return stage.running.module or stage.running.name
    return _in_traceback(error, stage) or (_USER_CODE if is_forward else _between(stage))


def _between(stage: StageModule) -> str:
    """Return a description of a stage's code outside its units, such as "code around h.0 to h.3".

    A unit is a module that is never split. In this example, the stage's first unit is h.0, and its
    last one is h.3.
    """
    units = stage.route.units
    return f"code around {units[0]} to {units[-1]}" if units else _USER_CODE


def _in_traceback(error: BaseException, stage: StageModule) -> str:
    """Return the name of the first unit of a stage in the traceback of an error; "" if none.

    A unit is a module that is never split.

    Args:
        error: Error whose traceback is searched, from the outermost call on.
        stage: Stage that was running.
    """
    units = {id(stage.unit(name)): name for name in stage.route.units}
    trace = error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in units:
            return units[id(module)]
        trace = trace.tb_next
    return ""


class Executor:
    """Runner of one rank's stages: each call of `run` executes one pipeline step.

    Args:
        stages: This rank's stages by number; exactly those that the schedule assigns to it.
        placement: Stage of each operation of the model, and the values sent between stages.
        schedule: Actions of each rank, in order. An action is a forward or backward pass of one
            stage for one microbatch.
        group: Process group of the pipeline's ranks, in the order of the schedule's ranks. Its
            backend must support message tags.
        hooks: Functions called before and after each backward action; None to call none.
        on_event: Function that records times; None to record nothing. It is called as
            on_event(kind, stage, microbatch, start, end, detail). Start and end are seconds of
            `time.perf_counter`; the detail is "". The kind of an action is "F" (forward), "B"
            (backward), "I" (backward for inputs) or "W" (backward for parameters). The kind "recv"
            is the wait for the inputs of an action, "send" the sending of its results.
        offload: Object that moves activations to the host; None to leave them on the device.

    Attributes:
        on_event: The argument of the same name; it may be replaced between steps.
        memory: Counter of the bytes in message buffers, and of the microbatches whose backward
            pass is still to come.

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
        offload: ActivationOffload | None = None,
    ) -> None:
        raise_all(_faults(stages, placement, schedule, group))
        self._stages, self._schedule, self._group = dict(stages), schedule, group
        self._hooks, self.on_event, self._offload = hooks, on_event, offload
        self._rank = dist.get_rank(group)
        self._alarm = Alarm(group)
        self._rank_schedules: dict[Any, RankSchedule] = {}
        self._transfers: DeviceTransfers | None = None
        self._set_program(next(iter(self._stages.values())).program, placement)
        self.memory = MemoryCounter()

    def adopt(self, captured: Captured, placement: Placement) -> None:
        """Use a new recording of the model's forward pass in all later steps.

        The new recording was made in another mode, such as evaluation, or for inputs of other
        shapes. It must have the same units (modules that are never split) as the first recording.

        Args:
            captured: New recording of the forward pass.
            placement: Stage of each operation in this recording.

        Raises:
            OptionError: The recording needs modules that are not on this rank.
        """
        raise_all(_faults(self._stages, placement, self._schedule, self._group))
        for stage in self._stages.values():
            stage.serve(captured, placement)
        self._set_program(captured.program, placement)

    def run(
        self, feed: Feed, *, draws: Callable[[int], RngStream], backward: bool
    ) -> list[Any] | None:
        """Run one pipeline step: all actions of this rank, in order.

        Args:
            feed: Function `feed(microbatch, call)` that runs the user's code of one microbatch. The
                user's code calls `call` in place of the model. `feed` returns a result, and a list
                of (tensor, gradient) pairs from which the backward pass starts.
            draws: Function that gets the number of a microbatch, and returns the source of its
                random numbers.
            backward: False to run forward passes only, and keep no data for backward passes.

        Returns:
            Results of `feed` in the order of microbatches, on the rank of the last stage; None on
            other ranks.

        Raises:
            StepError: This rank or another one raised an exception.
        """
        self._connect()
        rank_schedule = self._rank_schedule(backward)
        p2p = P2P(self._group, self.memory, self._transfers)
        stage_io = StageIO(
            p2p, self._stage_edges, rank_schedule.window, self._receive_order(rank_schedule)
        )
        step = RankStep(self._resources(), rank_schedule, stage_io, keeps=backward)
        with self._closing(step), self._ending(step), generators_kept():
            step.run(feed, draws)
            p2p.flush()
            p2p.meet()  # no rank returns from a step that another rank may still fail in
        if self._schedule.rank_of[-1] != self._rank:
            return None
        return [step.results[each] for each in range(self._schedule.num_microbatches)]

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Surround work that all ranks do together, such as the sum of gradients.

        If the block raises an exception on one rank, all ranks raise a StepError.

        Args:
            doing: Name of the work for the error message, such as "the sum of gradients".

        Raises:
            StepError: The block raised an exception on this rank or on another one.
        """
        try:
            yield
        except BaseException as error:
            raise self._alarm.error(error, doing, module_of(error, None)) from error

    def _resources(self) -> StepResources:
        """Return the objects of this executor that every step uses, such as stages and hooks."""
        return StepResources(
            stages=self._stages,
            stage_edges=self._stage_edges,
            memory=self.memory,
            hooks=self._hooks,
            on_event=self.on_event,
            offload=self._offload,
        )

    @contextmanager
    def _closing(self, step: RankStep) -> Iterator[None]:
        """Surround a step, and close it at its end, also after an error."""
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            step.close(has_failed=has_failed)

    @contextmanager
    def _ending(self, step: RankStep) -> Iterator[None]:
        """Surround a step: if the block raises on this rank, all ranks raise a StepError.

        Args:
            step: Step that runs in the block; the error names its current action.
        """
        try:
            yield
        except BaseException as error:
            action = str(step.action) if step.action is not None else "the end of the step"
            stage = self._stages[step.action.stage] if step.action is not None else None
            is_forward = step.action is None or step.action.do is Do.F
            module = module_of(error, stage, is_forward=is_forward)
            failure = self._alarm.error(error, action, module)
            cause = error.cause if isinstance(error, LostError) else error
            raise failure from cause

    def _set_program(self, program: Program, placement: Placement) -> None:
        """Compute the messages that stages exchange for a recorded forward pass, and keep them.

        Args:
            program: Recorded forward pass, with the shape and dtype of each value.
            placement: Stage of each recorded operation, and the values sent between stages.
        """
        rank_of, microbatches = self._schedule.rank_of, self._schedule.num_microbatches
        self._stage_edges = StageEdges(placement, program.part_facts, rank_of, microbatches)
        self._placement = placement
        edges = self._stage_edges.every
        if self._transfers is None and any(is_accelerator(wire.facts.device) for wire in edges):
            self._transfers = device_transfers(self._group)
        self._is_connected = self._transfers is None

    def _connect(self) -> None:
        """Connect this rank with those with which its stages exchange tensors on devices.

        Raises:
            StepError: This rank or another one could not be connected.
        """
        if self._transfers is not None and not self._is_connected:
            with self.guarded("the connection of devices"):
                self._transfers.connect(self._stage_edges.every)
            self._is_connected = True

    def _receive_order(self, rank_schedule: RankSchedule) -> ReceiveOrder | None:
        """Return the order of a step's receives; None if messages can be received in any order."""
        if self._transfers is None or not self._transfers.is_ordered:
            return None
        return ReceiveOrder(rank_schedule.orders, self._stage_edges, self._rank)

    def _rank_schedule(self, backward: bool) -> RankSchedule:
        """Return this rank's forward and backward passes of a step, in order.

        Results are cached.

        Args:
            backward: False to leave out the backward passes.
        """
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
    """Yield an error for each contradiction between the arguments of an `Executor`."""
    size = dist.get_world_size(group)
    if size != schedule.num_ranks:
        yield OptionError(
            f"the schedule is for {schedule.num_ranks} ranks",
            f"the pipeline's process group has {size}",
            f"Make the schedule with num_ranks={size}",
            about="schedule",
        )
        return
    if placement.num_stages != schedule.num_stages:
        yield OptionError(
            f"the schedule has {schedule.num_stages} stages",
            f"the model is placed on {placement.num_stages} stages",
            f"Place the model with num_stages={schedule.num_stages}",
            about="placement",
        )
        return
    wanted = schedule.stages_of[dist.get_rank(group)]
    if tuple(sorted(stages)) != wanted:
        yield OptionError(
            f"the executor got the stages {sorted(stages)}",
            f"the schedule has the stages {list(wanted)} on pipeline rank {dist.get_rank(group)}",
            "Pass one StageModule for each stage of this rank",
            about="stages",
        )
