# SPDX-License-Identifier: Apache-2.0
"""First step: make or load the plan, cut the model, print the plan, then run what waited for it.

The plan is the user's, that of a file, or the one that rank 0 finds for all ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.plan.explain import summary
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.capture import arguments_of, capture, signature
from smdist.modelparallel.torch.executor import Arguments
from smdist.modelparallel.torch.parallel.model_state import ModelState, probe
from smdist.modelparallel.torch.parallel.optimizers import ParameterRenaming
from smdist.modelparallel.torch.parallel.partitioned_model import cut
from smdist.modelparallel.torch.parallel.rank_agreement import (
    BEFORE,
    ending_all,
    in_words,
    raise_first,
    raise_together,
)
from smdist.modelparallel.torch.parallel.settings import Settings, checked
from smdist.modelparallel.torch.parallel.step_function import StepFunction, example_of
from smdist.modelparallel.torch.planning.local_cluster import cluster_of
from smdist.modelparallel.torch.planning.make_plan import plan as find
from smdist.modelparallel.torch.program.batch import Batch
from smdist.modelparallel.torch.session.object_collectives import broadcast_object
from smdist.modelparallel.torch.session.process_groups import Groups

_PASSED = (
    "pipeline", "active_microbatches", "virtual_stages", "optimize", "memory_weight",
    "auto_partition", "default_partition", "device_memory", "microbatches",
    "pipeline_parallel_degree",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicedBatch(Batch):
    """Batch from which the user's step function makes the model's arguments.

    Attributes:
        cut_into: Function from a number of microbatches to the model's arguments for the first.
    """

    cut_into: Callable[[int], Any]

    def microbatch(self, num_microbatches: int, index: int = 0) -> Any:
        """Return the model's arguments for the first of `num_microbatches` parts."""
        assert index == 0
        return self.cut_into(num_microbatches)


def given_plan(settings: Settings) -> Plan | None:
    """Return the plan that the user passed or named as a file; None if there is none.

    Raises:
        OptionError: The file cannot be read, or options contradict the plan.
    """
    if settings.plan is not None or settings.options.plan is None:
        return settings.plan
    plan = Plan.load(settings.options.plan)
    checked(settings.options, plan)
    return plan


def planned(model: nn.Module, batch: Batch, settings: Settings) -> Plan:
    """Find the plan; collective over the world, and the same on all ranks.

    Raises:
        OptionError: There is no plan; raised on every rank.
    """
    found: Plan | BaseException | None = None
    if session.current().rank == 0:
        try:
            found = _found(model, batch, settings)
        except BaseException as error:  # any error, since other ranks wait for this one
            found = error
    answer = broadcast_object(
        found if isinstance(found, Plan) else _portable(found), 0, session.current().world
    )
    if isinstance(found, BaseException):
        raise found
    if isinstance(answer, Plan):
        return answer
    if isinstance(answer, str):
        raise_first({0: answer}, "the search for a plan")
    assert isinstance(answer, OptionError)
    raise answer


def groups_of(plan: Plan, settings: Settings) -> Groups:
    """Return the groups that a plan needs; collective if the session has none yet.

    Raises:
        OptionError: The world does not divide by the plan's degree, or the groups have another.
    """
    degree, size = plan.pipeline_parallel_degree, session.current().size
    require(
        size % degree == 0,
        what=f"the plan has {degree} ranks in a pipeline, the world has {size} ranks",
        why="pipelines are equal",
        hint=f"Start a multiple of {degree} ranks, or plan for {size}",
    )
    if settings.groups is None:
        return session.current().decide(degree)
    require(
        settings.groups.pp_size == degree,
        what=f"the plan has {degree} ranks in a pipeline, the groups have"
        f" {settings.groups.pp_size}",
        why="every rank of a pipeline has its stages",
        hint="Pass the groups of a layout with that degree",
    )
    return settings.groups


def _portable(fault: BaseException | None) -> OptionError | str:
    """Return an OptionError as it is, and any other error as text."""
    return fault if isinstance(fault, OptionError) else in_words(fault)


def _found(model: nn.Module, batch: Batch, settings: Settings) -> Plan:
    asked = {name: getattr(settings.options, name) for name in _PASSED}
    if session.current().size == 1 and asked["pipeline_parallel_degree"] == "auto":
        asked["pipeline_parallel_degree"] = 1
    with torch.enable_grad():
        plan = find(model, batch, _cluster(model), costs=settings.costs, **asked)
    fields = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
    return Plan(**fields)  # the planning problem stays on this rank


def _cluster(model: nn.Module) -> Cluster:
    """Return the cluster of this world: host by host if all hosts have the same number of ranks."""
    here = session.current()
    size, local = here.size, here.local_size
    if size % local:
        return cluster_of(size, model)
    return replace(cluster_of(local, model), num_hosts=size // local)


def cut_for_step(state: ModelState, step_function: StepFunction) -> None:
    """Cut the model for the batch of a step, in the caller's modes.

    Raises:
        OptionError: There is no plan, or the plan is not for this model.
    """
    model, is_there = state.model, False

    def cut_into(number: int) -> Any:
        arguments = probe(
            state, step_function, step_function.cut(number)[0], lambda arguments: arguments
        )
        return example_of(arguments, model)

    def prepare(arguments: Arguments) -> None:
        nonlocal is_there
        is_there = True

        def read() -> Batch:
            example = example_of(arguments, model)
            size = step_function.size() or Batch.of(example).size
            return SlicedBatch(example=example, size=size, cut_into=cut_into)

        prepare_for(state, read)

    try:
        probe(state, step_function, step_function.cut(1)[0], prepare)
    except BaseException:
        if is_there:
            raise
        with raise_together(BEFORE):  # the other ranks are already here
            raise


def prepare_for(state: ModelState, read: Callable[[], Batch]) -> None:
    """Cut the model for a batch of one replica; collective over the world.

    Raises:
        OptionError: There is no plan, or the plan is not for this model.
    """
    model, settings = state.model, state.settings
    with raise_together(BEFORE):
        batch, given = read(), given_plan(settings)
    plan = given or planned(model, batch, settings)
    groups = groups_of(plan, settings)
    with raise_together("the capture of the model"):
        example = batch.microbatch(plan.num_microbatches)
        captured = capture(model, example, opened=plan.opened)
        plan.check(captured.graph)
        renaming = ParameterRenaming(model)
    with ending_all(groups, "the cut of the model"):
        split = cut(captured, plan, groups, settings, is_loaded=state.is_loaded)
        key = signature(split.skeleton, arguments_of(captured.example))
        split.keep(key, (split.captured, split.placement))
        state.split = split
        renaming.apply(split.stages)
    if session.current().rank == 0:
        _show(plan)
    with ending_all(groups, "what waited for the cut of the model"):
        state.catch_up()


def _show(plan: Plan) -> None:
    """Print a short form of the plan."""
    sys.stderr.write(summary(plan))
