# SPDX-License-Identifier: Apache-2.0
"""Data parallelism under a pipeline: one step of a rank, from equal values to final gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.layout import Axis
from smdist.modelparallel.core.placement import Placement
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.torch.groups import Groups
from smdist.modelparallel.torch.replicas import clip
from smdist.modelparallel.torch.replicas.equal import broadcast
from smdist.modelparallel.torch.replicas.held import HeldParameter, added, held_parameters
from smdist.modelparallel.torch.replicas.means import Means
from smdist.modelparallel.torch.replicas.sharded import Shards, keeps_gathered
from smdist.modelparallel.torch.replicas.ties import Ties
from smdist.modelparallel.torch.stage import StageModule

FUSION_BYTES: Final = 25 * 2**20
SHARDINGS: Final = ("none", "optimizer", "full")


class Replicas:
    """Keeps the replicas of a rank's stages alike.

    Args:
        stages: Those of this rank, by number.
        placement: Of the whole model.
        schedule: Of a step.
        groups: Where this rank is.
        graph: Of the whole model: knows the names of parameters.
        sharding: "none": every replica holds its stages whole; else see `sharded`.
        shard_degree: Ranks that share one copy; None: all replicas.
        bf16: Compute in bfloat16 with parameters in their own type; needs sharding.
        fusion_bytes: Of one all-reduce.

    Raises:
        OptionError: An option that does not work here; all of them at once.
    """

    def __init__(
        self,
        stages: Mapping[int, StageModule],
        placement: Placement,
        schedule: Schedule,
        groups: Groups,
        *,
        graph: Graph,
        sharding: str = "none",
        shard_degree: int | None = None,
        bf16: bool = False,
        fusion_bytes: int = FUSION_BYTES,
    ) -> None:
        self._stages, self._placement, self._schedule = stages, placement, schedule
        self._groups, self._graph, self._fusion_bytes = groups, graph, fusion_bytes
        raise_all(_faults(groups.rdp_size, sharding, shard_degree, bf16))
        self._sharding, self._bf16 = sharding, bf16
        self._shard_degree = shard_degree or groups.rdp_size
        self._shards: Shards | None = None
        self._stash: dict[str, Tensor] = {}
        self._ended: set[int] = set()
        self._is_open = False
        self._collect()

    def _collect(self) -> None:
        group = self._groups.of(Axis.RDP)
        every = held_parameters(self._stages, self._graph, trained=False)
        held = [each for each in every if each.parameter.requires_grad]
        self._every = {each.name: each.parameter for each in every}
        self._held = {each.name: each.parameter for each in held}
        whole = [each for each in held if not isinstance(each.parameter, DTensor)]
        self._means = Means(whole, group, self._fusion_bytes)
        self._ties = self._ties_of(held)
        self._elsewhere = list(self._ties_of(every).counted_elsewhere())

    def _ties_of(self, held: Sequence[HeldParameter]) -> Ties:
        pipeline = self._groups.of(Axis.PP)
        return Ties(self._placement.ties, self._schedule.rank_of, held, pipeline)

    def _follow(self) -> None:
        """Parameters may be frozen, or trained again, between steps; all ranks do it alike."""
        trained = [name for name, p in self._every.items() if p.requires_grad]
        if trained == list(self._held):
            return
        self._collect()
        if self._shards is not None:
            self._shards.retrain()

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Trained parameters of this rank, by the graph's names; other ones after `prepare`."""
        return self._held

    @property
    def groups(self) -> Groups:
        """Where this rank is."""
        return self._groups

    @property
    def hooks(self) -> Replicas:
        """What an executor calls around backward passes."""
        return self

    def prepare(self) -> None:
        """Make values equal on all replicas and on all holders of a tied parameter; then shard.

        Collective. Parameters are other objects afterwards where they are sharded.
        """
        every = held_parameters(self._stages, self._graph, trained=False)
        self._ties_of(every).share()
        buffers = {id(b): b for stage in self._stages.values() for b in stage.buffers()}
        tensors = [*(each.parameter for each in every), *buffers.values()]
        broadcast(tensors, self._groups.of(Axis.RDP), self._fusion_bytes)
        if self._sharding != "none":
            splits = self._schedule.splits_backward
            self._shards = Shards(
                self._stages,
                self._groups,
                shard_degree=self._shard_degree,
                keeps=keeps_gathered(self._sharding, splits_backward=splits),
                bf16=self._bf16,
            )
            self._collect()
        clip.register(self)

    @property
    def held(self) -> Mapping[str, nn.Parameter]:
        """All parameters of this rank by the graph's names, frozen ones too."""
        return self._every

    @property
    def has_losses(self) -> bool:
        """Whether this rank has the last stage, and what follows from it."""
        return self._schedule.rank_of[-1] == self._groups.pp_rank

    def counted_elsewhere(self) -> Iterable[nn.Parameter]:
        """Those that another rank of the pipeline has, too, and comes first."""
        return self._elsewhere

    def share_buffers(self) -> None:
        """Give all replicas the buffers of the first that forward passes change; collective."""
        found = {
            id(buffer): buffer
            for number in sorted(self._stages)
            for call in self._stages[number].route.calls
            if call.has_state
            for buffer in self._stages[number].get_submodule(call.module).buffers()
        }
        broadcast(found.values(), self._groups.of(Axis.RDP), self._fusion_bytes)

    def begin(self) -> None:
        """A step begins: gradients of earlier ones are put aside until `finish`."""
        self._is_open = False  # a step that has failed leaves it open
        self.rest()
        self._is_open = True
        self._follow()
        self._ended.clear()
        self._means.begin()
        self._stash = {name: p.grad for name, p in self._every.items() if p.grad is not None}
        for parameter in self._every.values():
            parameter.grad = None

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Called by the executor."""

    def after_backward(self, stage: int, is_last: bool) -> None:
        """Called by the executor: after the last backward pass of a step, reduction starts."""
        if is_last:
            self._end(stage)

    def _end(self, stage: int) -> None:
        if not self._ended:
            self._follow()  # between the passes of one series
        self._ended.add(stage)
        self._means.end(stage)
        if self._shards is not None:
            self._shards.end(stage)

    def finish(self) -> None:
        """Wait for reductions, sum what is tied, and add the gradients of earlier steps."""
        for stage in sorted(self._stages.keys() - self._ended):
            self._end(stage)
        self._means.finish()
        self._ties.finish()
        with torch.no_grad():
            for name, earlier in self._stash.items():
                parameter = self._every[name]
                now = parameter.grad
                parameter.grad = earlier if now is None else added(earlier, now)
        self._stash = {}
        self._is_open = False

    def rest(self) -> None:
        """After forward passes alone: let go of what sharding has gathered.

        Between `begin` and `finish` it stays: gradients are in it.
        """
        if self._shards is not None and not self._is_open:
            self._shards.rest()


def _faults(
    replicas: int, sharding: str, shard_degree: int | None, bf16: bool
) -> list[OptionError]:
    faults = []
    if sharding not in SHARDINGS:
        names = ", ".join(SHARDINGS)
        why = "it says what replicas share out among them"
        faults.append(OptionError(f"sharding is {sharding!r}", why, f"Use one of {names}"))
    if sharding == "none" and bf16:
        why = "parameters are cast as they are gathered from shards"
        mend = "Use torch.autocast in the step, or sharding='optimizer'"
        faults.append(OptionError("bf16 is True and sharding is 'none'", why, mend))
    if sharding == "none" and shard_degree is not None:
        why = "it counts the ranks that share one copy, and nothing is shared out"
        mend = "Leave it out, or set sharding"
        faults.append(OptionError(f"shard_degree is {shard_degree!r}", why, mend))
    elif shard_degree is not None and (shard_degree < 1 or replicas % shard_degree):
        why = f"the {replicas} replicas are cut into groups of it"
        mend = f"Use one of {', '.join(str(n) for n in _divisors(replicas))}"
        faults.append(OptionError(f"shard_degree is {shard_degree!r}", why, mend))
    return faults


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
