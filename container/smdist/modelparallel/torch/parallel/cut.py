# SPDX-License-Identifier: Apache-2.0
"""From a whole model to the stages of this rank, once: planned on rank 0, the same everywhere."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.schedule import Action, Do, Schedule
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.checkpoint.leftovers import keep_unused
from smdist.modelparallel.torch.executor import Executor, OnEvent, StageHooks
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.parallel.mirror import Mirror
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.replicas import Replicas
from smdist.modelparallel.torch.residence import materialize, release, skeleton
from smdist.modelparallel.torch.stage import StageModule

MOST_KNOWN = 64  # signatures of inputs that are kept


@dataclass(slots=True, kw_only=True)
class Split:
    """A model that was cut: what of it this rank has, and what runs it.

    Attributes:
        model: The user's; what other ranks have is without values in it.
        captured, placement: Of the signature that stages serve now.
        skeleton: The whole model without values.
        known: Captures by signature, the least recent first.
        compared: What ranks have said of calls whose first batch they had in common; the same on
            all ranks of the pipeline.
        executors: Of the plan's schedule by None; those that go forward only by microbatches.
        serving: Which executor is set for which capture.
        on_event: Who is told what executors do.
        latest: The last call, in short, and its signature.
        said: Which parameters are frozen, at a version of the mirror.
        agreed: Which were, where all ranks last agreed on it.
    """

    model: nn.Module
    plan: Plan
    groups: Groups
    stages: Mapping[int, StageModule]
    captured: Captured
    placement: Placement
    skeleton: nn.Module
    mirror: Mirror
    replicas: Replicas
    known: OrderedDict[Hashable, tuple[Captured, Placement]] = field(default_factory=OrderedDict)
    compared: set[str] = field(default_factory=set)
    executors: dict[int | None, Executor] = field(default_factory=dict)
    serving: tuple[int | None, Captured] | None = None
    on_event: OnEvent | None = None
    latest: tuple[Hashable, Hashable] | None = None
    said: tuple[int, tuple[str, ...]] = (-1, ())
    agreed: tuple[str, ...] = ()

    @property
    def last_rank(self) -> int:
        """The pipeline's rank that has the last stage."""
        return self.plan.actions.rank_of[-1]

    def keep(self, key: Hashable, found: tuple[Captured, Placement]) -> None:
        """Know a signature from now on; the least recent one is forgotten."""
        self.known[key] = found
        while len(self.known) > MOST_KNOWN:
            self.known.popitem(last=False)

    def compare(self, said: str) -> None:
        """The batch of such a call has been compared."""
        if len(self.compared) >= MOST_KNOWN:
            self.compared.clear()
        self.compared.add(said)

    def recall(self, key: Hashable) -> tuple[Captured, Placement]:
        """One that is known, the most recent one now."""
        self.known.move_to_end(key)
        return self.known[key]

    def frozen(self) -> tuple[str, ...]:
        """Which parameters are: all ranks of the pipeline see the same."""
        if self.said[0] != self.mirror.version:
            parameters = self.skeleton.named_parameters()
            names = [name for name, parameter in parameters if not parameter.requires_grad]
            self.said = self.mirror.version, tuple(names)
        return self.said[1]

    def aliases(self, name: str) -> list[str]:
        """All names of the parameter that has this one."""
        parameter = self.skeleton.get_parameter(name)
        every = self.skeleton.named_parameters(remove_duplicate=False)
        return [alias for alias, other in every if other is parameter]

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """An exception within ends what all ranks do; one stage alone has no executor for it."""
        executor = next(iter(self.executors.values()), None)
        with nullcontext() if executor is None else executor.guarded(doing):
            yield

    def tell(self, *event: Any) -> None:
        """An executor has done something."""
        if self.on_event is not None:
            self.on_event(*event)

    def executor(
        self, parts: int | None, schedule: Callable[[], Schedule], hooks: StageHooks
    ) -> Executor:
        """One for a schedule, serving the signature of now."""
        if parts not in self.executors:
            group = self.groups.of(Axis.PP)
            self.executors[parts] = Executor(
                self.stages, self.placement, schedule(), group, hooks=hooks, on_event=self.tell
            )
        if (
            self.serving is None
            or self.serving[0] != parts
            or (self.serving[1] is not self.captured)
        ):
            self.executors[parts].adopt(self.captured, self.placement)
            self.serving = (parts, self.captured)
        return self.executors[parts]


@torch.inference_mode(False)  # what is made here is trained later
def cut(
    captured: Captured, plan: Plan, groups: Groups, settings: Settings, *, is_loaded: bool = False
) -> Split:
    """Keep the stages of this rank of the model that was captured, and let go of the rest.

    Args:
        is_loaded: Whether values follow: none are missed in a model that was made without.

    Raises:
        PlanError: The plan is not for this model.
    """
    model, placement = captured.model, plan.check(captured.graph)
    schedule = plan.actions
    own = schedule.stages_of[groups.pp_rank]
    stages = {number: StageModule(captured, placement, number) for number in own}
    keep_unused(model, captured.program, placement, stages)
    bare = skeleton(model)
    release(model, stages)
    device = (
        torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    )
    materialize(model, stages, seed=settings.seed, device=device, strict=not is_loaded)
    replicas = Replicas(
        stages, placement, schedule, groups, graph=captured.graph, sharding=settings.sharding,
        shard_degree=settings.shard_degree, bf16=settings.bf16,
        fusion_bytes=settings.fusion_bytes,
    )  # fmt: skip
    replicas.prepare()
    units = {call.module for call in captured.program.calls if call.is_unit}
    own_units = {unit for stage in stages.values() for unit in stage.route.units}
    mirror = Mirror(model, bare, units, own_units)
    captured = replace(captured, example=None)
    split = Split(
        model=model, plan=plan, groups=groups, stages=stages, captured=captured,
        placement=placement, skeleton=bare, mirror=mirror, replicas=replicas,
    )  # fmt: skip
    split.agreed = split.frozen()
    return split


def forward_only(plan: Plan, num_microbatches: int) -> Schedule:
    """The forward passes alone: a rank takes all microbatches through one stage, then the next."""
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
