# SPDX-License-Identifier: Apache-2.0
"""Stages of this rank, made once from a whole model and a plan that is the same on all ranks.

`Trace` records the steps of all ranks: `with model.traced() as trace:`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.plan import Plan
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.core.schedule import Action, Do, Schedule
from smdist.modelparallel.torch import session
from smdist.modelparallel.torch.capture import Captured
from smdist.modelparallel.torch.executor import Executor, OnEvent, StageHooks
from smdist.modelparallel.torch.executor.run_trace import Recorder, Run, gather
from smdist.modelparallel.torch.materialization import materialize, release, skeleton
from smdist.modelparallel.torch.materialization.release import keep_unused
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.parallel.settings import Settings
from smdist.modelparallel.torch.parallel.skeleton_sync import SkeletonSync
from smdist.modelparallel.torch.replicas import Replicas
from smdist.modelparallel.torch.session.process_groups import Groups

MOST_KNOWN = 64  # input signatures whose captures are kept


@dataclass(slots=True, kw_only=True)
class PartitionedModel:
    """Model that was cut: this rank's stages, and the objects that run them.

    Attributes:
        model: Model of the user; tensors that other ranks hold have no values.
        captured, placement: Capture and placement of the signature that stages serve now.
        skeleton: Whole model without values.
        known: Captures by signature, least recently used first.
        compared: Descriptions of calls whose first batch was compared; equal on all ranks of the
            pipeline.
        executors: Executor of the plan's schedule under None; those for forward passes alone under
            their number of microbatches.
        serving: Executor key and capture that the stages are set to.
        on_event: Function that receives the events of executors.
        latest: Short signature of the last call, and its full signature.
        said: Version of the mirror, and the parameters that are frozen in it.
        agreed: Parameters that were frozen when all ranks last agreed.
    """

    model: nn.Module
    plan: Plan
    groups: Groups
    stages: Mapping[int, StageModule]
    captured: Captured
    placement: Placement
    skeleton: nn.Module
    mirror: SkeletonSync
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
        """Rank of the pipeline that has the last stage."""
        return self.plan.actions.rank_of[-1]

    def keep(self, key: Hashable, found: tuple[Captured, Placement]) -> None:
        """Add the capture of a signature; drop the least recently used one of too many."""
        self.known[key] = found
        while len(self.known) > MOST_KNOWN:
            self.known.popitem(last=False)

    def compare(self, said: str) -> None:
        """Note that ranks have compared the batch of such a call."""
        if len(self.compared) >= MOST_KNOWN:
            self.compared.clear()
        self.compared.add(said)

    def recall(self, key: Hashable) -> tuple[Captured, Placement]:
        """Return the capture of a known signature, and make it the most recently used."""
        self.known.move_to_end(key)
        return self.known[key]

    def frozen(self) -> tuple[str, ...]:
        """Return the names of the frozen parameters, the same on all ranks of the pipeline."""
        if self.said[0] != self.mirror.version:
            parameters = self.skeleton.named_parameters()
            names = [name for name, parameter in parameters if not parameter.requires_grad]
            self.said = self.mirror.version, tuple(names)
        return self.said[1]

    def aliases(self, name: str) -> list[str]:
        """Return all names of the parameter with this name."""
        parameter = self.skeleton.get_parameter(name)
        every = self.skeleton.named_parameters(remove_duplicate=False)
        return [alias for alias, other in every if other is parameter]

    @contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """End the step on all ranks if the block raises and there is an executor."""
        executor = next(iter(self.executors.values()), None)
        with nullcontext() if executor is None else executor.guarded(doing):
            yield

    def tell(self, *event: Any) -> None:
        """Pass on an event of an executor."""
        if self.on_event is not None:
            self.on_event(*event)

    def executor(
        self, parts: int | None, schedule: Callable[[], Schedule], hooks: StageHooks
    ) -> Executor:
        """Return the executor of a schedule, set to the current capture."""
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


@torch.inference_mode(False)  # parameters made here are trained later
def cut(
    captured: Captured, plan: Plan, groups: Groups, settings: Settings, *, is_loaded: bool = False
) -> PartitionedModel:
    """Keep this rank's stages of a captured model, and free the rest.

    Args:
        is_loaded: True if values are loaded later, so that missing values are no fault.

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
    mirror = SkeletonSync(model, bare, units, own_units)
    captured = replace(captured, example=None)
    split = PartitionedModel(
        model=model, plan=plan, groups=groups, stages=stages, captured=captured,
        placement=placement, skeleton=bare, mirror=mirror, replicas=replicas,
    )  # fmt: skip
    split.agreed = split.frozen()
    return split


def forward_only(plan: Plan, num_microbatches: int) -> Schedule:
    """Make a schedule of forward passes: a rank runs all microbatches of a stage, then the next."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Record of this rank's steps.

    Attributes:
        recorder: Events of this rank.
    """

    recorder: Recorder
    split: PartitionedModel

    @classmethod
    def of(cls, split: PartitionedModel) -> Trace:
        """Return an empty trace."""
        groups = split.groups
        recorder = Recorder(rank=groups.rank, replica=groups.rdp_rank, pipeline_rank=groups.pp_rank)
        return cls(recorder=recorder, split=split)

    def gather(self) -> Run:
        """Collect the events of all ranks; collective over the world, and the same result on all.

        Of the result, `save(path)` writes a Chrome trace, `plot(path)` a picture, and `replay()`
        compares it with the simulation.
        """
        return gather(
            self.recorder,
            session.current().world,
            schedule=self.split.plan.actions,
            edges=self.split.placement.edges,
        )
