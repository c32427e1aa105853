# SPDX-License-Identifier: Apache-2.0
"""Which plan a model runs by: the user's, that of a file, or what rank 0 finds for everybody."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from sagemaker_dist.errors import OptionError, require
from smdist.modelparallel.core.cluster import Cluster
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.batch import Batch
from smdist.modelparallel.torch.comm import share
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.here import cluster_of
from smdist.modelparallel.torch.identity import WORLD
from smdist.modelparallel.torch.parallel.settings import Settings, checked
from smdist.modelparallel.torch.parallel.together import in_words, raise_first
from smdist.modelparallel.torch.planning import plan as find

_PASSED = (
    "pipeline", "active_microbatches", "virtual_stages", "optimize", "memory_weight",
    "auto_partition", "default_partition", "device_memory", "microbatches",
    "pipeline_parallel_degree",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliced(Batch):
    """A batch that the user's step function makes the model's arguments of.

    Attributes:
        cut_into: The model's arguments for the first of so many microbatches.
    """

    cut_into: Callable[[int], Any]

    def microbatch(self, num_microbatches: int, index: int = 0) -> Any:
        """The first of so many equal parts; nobody asks for others."""
        assert index == 0
        return self.cut_into(num_microbatches)


def given_plan(settings: Settings) -> Plan | None:
    """The plan that the user has: what the call was given, or that of a file.

    Raises:
        OptionError: The file cannot be read, or options say otherwise.
    """
    if settings.plan is not None or settings.options.plan is None:
        return settings.plan
    plan = Plan.load(settings.options.plan)
    checked(settings.options, plan)
    return plan


def planned(model: nn.Module, batch: Batch, settings: Settings) -> Plan:
    """Find the plan; collective over the world, and the same on all ranks.

    Raises:
        OptionError: There is none, on every rank.
    """
    found: Plan | BaseException | None = None
    if session.current().rank == 0:
        try:
            found = _found(model, batch, settings)
        except BaseException as error:  # whatever it is, others wait for this rank
            found = error
    answer = share(found if isinstance(found, Plan) else _portable(found), 0, WORLD)
    if isinstance(found, BaseException):
        raise found
    if isinstance(answer, Plan):
        return answer
    if isinstance(answer, str):
        raise_first({0: answer}, "the search for a plan")
    assert isinstance(answer, OptionError)
    raise answer


def groups_of(plan: Plan, settings: Settings) -> Groups:
    """The groups that a plan needs; collective where the session has none yet.

    Raises:
        OptionError: The world or the session has another degree.
    """
    degree, size = plan.pipeline_parallel_degree, session.current().size
    require(
        size % degree == 0,
        what=f"the plan has {degree} ranks in a pipeline, the world has {size} ranks",
        why="pipelines are equal",
        mend=f"Start a multiple of {degree} ranks, or plan for {size}",
    )
    if settings.groups is None:
        return session.current().decide(degree)
    require(
        settings.groups.pp_size == degree,
        what=f"the plan has {degree} ranks in a pipeline, the groups have"
        f" {settings.groups.pp_size}",
        why="every rank of a pipeline has its stages",
        mend="Pass the groups of a layout with that degree",
    )
    return settings.groups


def _portable(fault: BaseException | None) -> OptionError | str:
    """An error that was found for all ranks, or else words."""
    return fault if isinstance(fault, OptionError) else in_words(fault)


def _found(model: nn.Module, batch: Batch, settings: Settings) -> Plan:
    asked = {name: getattr(settings.options, name) for name in _PASSED}
    if session.current().size == 1 and asked["pipeline_parallel_degree"] == "auto":
        asked["pipeline_parallel_degree"] = 1
    with torch.enable_grad():
        plan = find(model, batch, _cluster(model), costs=settings.costs, **asked)
    fields = {name: getattr(plan, name) for name in Plan.__dataclass_fields__}
    return Plan(**fields)  # what it was planned with stays on this rank


def _cluster(model: nn.Module) -> Cluster:
    """The ranks that there are, host by host where all hosts have as many."""
    here = session.current()
    size, local = here.size, here.local_size
    if size % local:
        return cluster_of(size, model)
    return replace(cluster_of(local, model), num_hosts=size // local)
