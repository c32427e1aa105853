# SPDX-License-Identifier: Apache-2.0
"""First step of a model: get a plan, and split the model into stages as the plan says.

A plan has the stage of each module, and the order in which each rank runs its stages. The user
passes the plan or its file, or else rank 0 searches for a plan. Rank 0 prints a summary of the
plan.

At the end, functions that waited for the stages are called, such as the loading of a checkpoint.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from sagemaker_dist.errors import require
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.explain import summary
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.accelerator import (
    accelerator_of,
    current_device,
    is_off_accelerator,
)
from smdist.modelparallel.torch.capture import Captured, arguments_of, capture, signature
from smdist.modelparallel.torch.capture.signature import SkeletonSync
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.executor.offload import ActivationOffload
from smdist.modelparallel.torch.materialization import (
    materialize,
    move_stages,
    release,
    skeleton,
)
from smdist.modelparallel.torch.materialization.release import keep_unused
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.measure import with_slices
from smdist.modelparallel.torch.parallel.call_agreement import BEFORE, ending_all
from smdist.modelparallel.torch.parallel.job_plan import planned, tensor_degree
from smdist.modelparallel.torch.parallel.model_agreement import check_model_of_rank_0
from smdist.modelparallel.torch.parallel.model_state import ModelState, PartitionedModel, probe
from smdist.modelparallel.torch.parallel.not_searched import searches_splits
from smdist.modelparallel.torch.parallel.optimizers import ParameterRenaming
from smdist.modelparallel.torch.parallel.settings import Settings, checked, with_plan
from smdist.modelparallel.torch.parallel.step_function import SlicedBatch, StepFunction, example_of
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.program.checkpointed_forward import checkpoint_modules
from smdist.modelparallel.torch.program.pytree import flatten
from smdist.modelparallel.torch.replicas import Replicas
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.session.rank_team import (
    raise_together,
)
from smdist.modelparallel.torch.tensor_parallel import TensorPlan
from smdist.modelparallel.torch.tensor_parallel import split as split_tensors

_log = logging.getLogger(__name__)


def given_plan(settings: Settings) -> Plan | None:
    """Return the plan that the user passed, directly or as a file; None if there is no plan.

    Args:
        settings: Settings of the parallel model.

    Raises:
        OptionError: The file cannot be read, or options contradict the plan.
    """
    if settings.plan is not None or settings.options.plan is None:
        return settings.plan
    plan = Plan.load(settings.options.plan)
    checked(settings.options, plan)
    return plan


def groups_of(plan: Plan, settings: Settings) -> Groups:
    """Return the process groups for a plan; if there are none yet, all ranks must call this.

    Args:
        plan: Plan of the model; its pipeline degree is the number of ranks in a pipeline.
        settings: Settings of the parallel model, which may already contain the groups.

    Raises:
        OptionError: The pipeline degree of the plan does not divide the number of ranks, or the
            groups in the settings have another degree.
    """
    degree, size = plan.pipeline_parallel_degree, session.current().size
    require(
        size % degree == 0,
        what=f"the plan has {degree} ranks in a pipeline, and the world has {size} ranks",
        why="all pipelines have the same number of ranks",
        hint=f"Start a multiple of {degree} ranks, or make a plan for {size} ranks",
        about="plan",
    )
    if settings.groups is None:
        tensor = plan.tensor_parallel_degree if searches_splits(settings) else None
        return session.current().decide(degree, tensor)
    require(
        settings.groups.pp_size == degree,
        what=f"the plan is for {degree} ranks in a pipeline, but the process groups in 'groups'"
        f" have {settings.groups.pp_size}",
        why="the two numbers have to be equal",
        hint=f"Pass process groups that were made with pipeline_parallel_degree={degree}",
        about="groups",
    )
    return settings.groups


def cut_for_step(state: ModelState, step_function: StepFunction) -> None:
    """Split the model into stages before its first step; all ranks must call this.

    The user's code of one microbatch is run up to the model's call, to get the model's arguments.
    The forward pass is recorded in the present training and gradient modes.

    Args:
        state: State of the parallel model.
        step_function: User's code of the step, with its batch.

    Raises:
        OptionError: There is no plan, or the plan is not for this model.
    """
    model, has_called = state.model, False

    def cut_into(number: int) -> Any:
        arguments = probe(
            state, step_function, step_function.cut(number)[0], lambda arguments: arguments
        )
        return example_of(arguments, model)

    def prepare(arguments: Arguments) -> None:
        nonlocal has_called
        has_called = True

        def read() -> Batch:
            example = example_of(arguments, model)
            size = step_function.size() or Batch.of(example).size
            return SlicedBatch(example=example, size=size, cut_into=cut_into)

        prepare_for(state, read)

    try:
        probe(state, step_function, step_function.cut(1)[0], prepare)
    except BaseException:
        if has_called:
            raise
        with raise_together(session.current().world, BEFORE):  # other ranks wait in prepare_for
            raise


def prepare_for(state: ModelState, read: Callable[[], Batch]) -> None:
    """Get a plan, and split the model into stages as the plan says; all ranks must call this.

    Args:
        state: State of the parallel model.
        read: Function that returns the batch of one replica. If it fails on one rank, all ranks
            raise an error.

    Raises:
        OptionError: There is no plan, or the plan is not for this model.
    """
    model, settings = state.model, state.settings
    with raise_together(session.current().world, BEFORE):
        batch, given = read(), given_plan(settings)
        renaming = ParameterRenaming(model)
    if given is None and settings.offload_horizon is not None:
        _warn_of_forecast()
    plan, tensor_plan = _plan_and_split(model, batch, given, settings)
    with raise_together(session.current().world, "the reading of the plan"):
        settings = state.settings = with_plan(settings, plan)
        checkpoint_modules(model, plan.checkpointed)
    groups = groups_of(plan, settings)
    with raise_together(session.current().world, "the capture of the model"):
        example = batch.microbatch(plan.num_microbatches)
        captured = with_slices(capture(model, example, opened=plan.opened))
        if given is None:
            check_model_of_rank_0(plan, captured.graph, session.current().rank)
        plan.check(captured.graph)
    with ending_all(groups, "the cut of the model"):
        split = cut(captured, plan, groups, settings, is_loaded=state.is_loaded)
        key = signature(split.skeleton, arguments_of(captured.example))
        split.add_capture(key, (split.captured, split.placement))
        split.tensor_plan = tensor_plan
        state.split = split
        renaming.apply(split.stages)
    if session.current().rank == 0:
        _show(plan, tensor_plan)
    with ending_all(groups, "the functions that run after the cut of the model"):
        state.catch_up()


def _plan_and_split(
    model: nn.Module, batch: Batch, given: Plan | None, settings: Settings
) -> tuple[Plan, TensorPlan | None]:
    """Return the plan, after splitting the layers over ranks; all ranks must call this.

    Layers are split before the search for a plan if their degree is known, and else as the plan
    that was found says.

    Args:
        model: The whole model.
        batch: Batch of one replica.
        given: Plan of the user; None to find one.
        settings: Settings of the parallel model.
    """
    if given is None and searches_splits(settings):
        plan = planned(model, batch, settings)
        groups_of(plan, settings)
        return plan, _split_tensors(model, batch, settings)
    tensor_plan = _split_tensors(model, batch, settings)
    return given or planned(model, batch, settings), tensor_plan


@torch.inference_mode(False)  # parameters made here are trained later
def cut(
    captured: Captured, plan: Plan, groups: Groups, settings: Settings, *, is_loaded: bool = False
) -> PartitionedModel:
    """Build this rank's stages of a recorded model, and free the tensors of all other stages.

    All ranks must call this.

    Args:
        captured: Recorded forward pass of the model.
        plan: Plan with the stages and the schedule.
        groups: Process groups for the plan.
        settings: Settings of the parallel model.
        is_loaded: True if all parameters and buffers are loaded later, so that they may have no
            values now.

    Returns:
        This rank's stages, with the objects that run them.

    Raises:
        PlanError: The plan is not for this model.
    """
    model, placement = captured.model, plan.check(captured.graph)
    schedule = plan.actions
    own = schedule.stages_of[groups.pp_rank]
    stages = {number: StageModule(captured, placement, number) for number in own}
    keep_unused(model, captured.program, placement, stages)
    bare = skeleton(model)
    moves_to = _device_of_batch(captured) if is_off_accelerator(model) else None
    release(model, stages)
    materialize(model, stages, seed=settings.seed, device=current_device(), strict=not is_loaded)
    if moves_to is not None:
        move_stages(model, stages, moves_to)
    replicas = Replicas(
        stages, placement, schedule, groups, graph=captured.graph, sharding=settings.sharding,
        shard_degree=settings.shard_degree, gradient_reduction=settings.gradient_reduction,
        bf16=settings.bf16, fp16=settings.fp16, fusion_bytes=settings.fusion_bytes,
        offloads_optimizer=settings.offloads_optimizer,
    )  # fmt: skip
    replicas.prepare()
    if settings.offloads_optimizer and all(map(is_off_accelerator, stages.values())):
        _warn_of_cpu("offload_optimizer=True", "optimizer state is")
    units = {call.module for call in captured.program.calls if call.is_unit}
    own_units = {unit for stage in stages.values() for unit in stage.route.units}
    skeleton_sync = SkeletonSync(model, bare, units, own_units)
    offload = _offload(stages, _device_of_batch(captured), settings)
    captured = replace(captured, example=None)
    split = PartitionedModel(
        model=model, plan=plan, groups=groups, stages=stages, captured=captured,
        placement=placement, skeleton=bare, skeleton_sync=skeleton_sync, replicas=replicas,
        offload=offload,
    )  # fmt: skip
    split.agreed_frozen = split.frozen()
    return split


def _offload(
    stages: Mapping[int, StageModule], device: torch.device | None, settings: Settings
) -> ActivationOffload | None:
    """Return the object that moves activations of this rank's stages to the host, if they should.

    A model on the CPU needs none: rank 0 logs a warning.

    Args:
        stages: Stages of this rank.
        device: Accelerator of the batch; None if the batch is on the CPU.
        settings: Settings of the parallel model.
    """
    horizon = settings.offload_horizon
    if horizon is None:
        return None
    if device is None and all(map(is_off_accelerator, stages.values())):
        _warn_of_cpu("offload_activations=True", "activations are")
        return None
    here = current_device()
    assert here is not None
    return ActivationOffload(here, horizon)


@cache
def _warn_of_cpu(option: str, stays: str) -> None:
    """Log a warning on rank 0 of the job, once: what would move is in the host's memory already.

    Args:
        option: Option that has no effect, with its value.
        stays: Subject and verb of the reason, such as "activations are".
    """
    if session.current().rank == 0:
        _log.warning(
            "%s moves nothing: the model is on the CPU, so %s in the host's memory already.",
            option,
            stays,
        )


def _warn_of_forecast() -> None:
    """Log a warning on rank 0: the planner does not know that activations move to the host."""
    if session.current().rank == 0 and current_device() is not None:
        _log.warning(
            "offload_activations=True: the planner counts activations as if they were on the"
            " device. If it finds no plan within the memory, pass a larger device_memory."
        )


def _device_of_batch(captured: Captured) -> torch.device | None:
    """Return the accelerator on which the model's arguments are; None if they are on the CPU."""
    leaves, _ = flatten(arguments_of(captured.example))
    return accelerator_of(leaf for leaf in leaves if isinstance(leaf, Tensor))


def _split_tensors(model: nn.Module, batch: Batch, settings: Settings) -> TensorPlan | None:
    """Split the layers of the model over ranks; all ranks must call this.

    Args:
        model: The whole model.
        batch: Batch of one replica.
        settings: Settings of the parallel model.

    Returns:
        Plan of tensor parallelism; None if tensors are whole.
    """
    if tensor_degree(settings) == 1:
        return None
    number = settings.options.microbatches
    parts = number if isinstance(number, int) else 1
    groups = session.current().groups if settings.groups is None else settings.groups
    world = session.current().world
    return split_tensors(
        model, lambda: arguments_of(batch.microbatch(parts)), groups, world,
        sequence_parallel=session.current().options.sequence_parallel,
    )  # fmt: skip


def _show(plan: Plan, tensor_plan: TensorPlan | None) -> None:
    """Print a summary of the plans to stderr."""
    sys.stderr.write(summary(plan))
    if tensor_plan is not None:
        sys.stderr.write(tensor_plan.summary())
