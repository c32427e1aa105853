# SPDX-License-Identifier: Apache-2.0
"""Data parallelism under a pipeline: one rank's part, from equal values to final gradients.

A tied parameter, which stages on several ranks hold, gets the whole gradient on each of them. Every
holder sends its gradient to the others of its pipeline, and each adds them in the order of stages,
so all have the same bits. If gradients are sharded, shards are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import OptionError, raise_all
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import Placement, Tie
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.replicas import grad_clipping
from smdist.modelparallel.torch.replicas.fsdp_shards import Shards, keeps_gathered
from smdist.modelparallel.torch.replicas.gradient_buckets import (
    GradientBuckets,
    OwnedParam,
    added,
    broadcast,
    flags,
    flattened,
    owned_params,
    set_gradient,
)
from smdist.modelparallel.torch.session.process_groups import Groups

_TAG = 1 << 20  # above the tags of activations, which use the same group


class TiedParams:
    """Tied parameters of one rank.

    Args:
        ties: All ties of the model.
        rank_of: Rank in the pipeline, by stage.
        held: Parameters that this rank holds.
        group: Group of the pipeline.
    """

    def __init__(
        self,
        ties: Sequence[Tie],
        rank_of: Sequence[int],
        held: Sequence[OwnedParam],
        group: dist.ProcessGroup,
    ) -> None:
        self._group = group
        own = {each.name: each.parameter for each in held}
        self._families: dict[tuple[int, ...], list[nn.Parameter]] = {}
        for tie in ties:
            holders = tuple(dict.fromkeys(rank_of[stage] for stage in tie.stages))
            if len(holders) > 1 and group.rank() in holders and tie.parameter in own:
                self._families.setdefault(holders, []).append(own[tie.parameter])

    def counted_elsewhere(self) -> Iterator[nn.Parameter]:
        """Yield the parameters whose first stage is on another rank."""
        for holders, parameters in self._families.items():
            if holders[0] != self._group.rank():
                yield from parameters

    def share(self) -> None:
        """Give all holders the values of the first."""
        with torch.no_grad():
            for holders, parameters in self._families.items():
                for parameter in parameters:
                    self._share(holders, parameter)

    def _share(self, holders: tuple[int, ...], parameter: nn.Parameter) -> None:
        values = parameter.detach().contiguous().cpu()
        if holders[0] == self._group.rank():
            for other in holders[1:]:
                dist.send(values, group=self._group, group_dst=other, tag=_TAG)
        else:
            values = torch.empty_like(values)
            dist.recv(values, group=self._group, group_src=holders[0], tag=_TAG)
            parameter.copy_(values)

    def finish(self) -> None:
        """Sum gradients over the holders; None if none of them has a gradient."""
        with torch.no_grad():
            for holders, parameters in self._families.items():
                for alike in _by_dtype(parameters):
                    self._sum(holders, alike)

    def _sum(self, holders: tuple[int, ...], parameters: list[nn.Parameter]) -> None:
        vectors = flattened(parameters)
        own = torch.cat([*vectors, flags(parameters, like=vectors[0])])
        total = self._total(holders, own.cpu()).to(own.device)
        lengths = [len(vector) for vector in vectors]
        *sums, has_gradient = torch.split(total, [*lengths, len(parameters)])
        for parameter, found, has in zip(parameters, sums, has_gradient.tolist(), strict=True):
            set_gradient(parameter, found if has > 0 else None)

    def _total(self, holders: tuple[int, ...], own: Tensor) -> Tensor:
        by_rank: Mapping[int, Tensor] = {
            rank: own if rank == self._group.rank() else torch.empty_like(own) for rank in holders
        }
        works: list[dist.Work | None] = []
        for rank, vector in by_rank.items():
            if vector is not own:
                works.append(dist.irecv(vector, group=self._group, group_src=rank, tag=_TAG))
                works.append(dist.isend(own, group=self._group, group_dst=rank, tag=_TAG))
        for work in works:
            assert work is not None
            work.wait()
        total = by_rank[holders[0]].clone()
        for rank in holders[1:]:
            total += by_rank[rank]
        return total


def _by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    found: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        found.setdefault(parameter.dtype, []).append(parameter)
    return list(found.values())


FUSION_BYTES: Final = 25 * 2**20
SHARDINGS: Final = ("none", "optimizer", "full")


class Replicas:
    """Data parallelism of a rank's stages: equal parameters and reduced gradients.

    Args:
        stages: Stages of this rank, by number.
        placement: Placement of the whole model.
        schedule: Schedule of a step.
        groups: Process groups of this rank.
        graph: Graph of the whole model, which has the names of parameters.
        sharding: "none": every replica holds its stages whole; for "optimizer" and "full" see
            `fsdp_shards`.
        shard_degree: Number of ranks that share one copy; None for all replicas.
        bf16: True to compute in bfloat16, with parameters in their own type; needs sharding.
        fusion_bytes: Size of the buffer of one all-reduce.

    Raises:
        OptionError: Options do not work here; all of them at once.
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
        every = owned_params(self._stages, self._graph, trained=False)
        held = [each for each in every if each.parameter.requires_grad]
        self._every = {each.name: each.parameter for each in every}
        self._held = {each.name: each.parameter for each in held}
        whole = [each for each in held if not isinstance(each.parameter, DTensor)]
        self._means = GradientBuckets(whole, group, self._fusion_bytes)
        self._ties = self._ties_of(held)
        self._elsewhere = list(self._ties_of(every).counted_elsewhere())

    def _ties_of(self, held: Sequence[OwnedParam]) -> TiedParams:
        pipeline = self._groups.of(Axis.PP)
        return TiedParams(self._placement.ties, self._schedule.rank_of, held, pipeline)

    def _follow(self) -> None:
        """Follow parameters that were frozen, or trained again, alike on all ranks."""
        trained = [name for name, p in self._every.items() if p.requires_grad]
        if trained == list(self._held):
            return
        self._collect()
        if self._shards is not None:
            self._shards.retrain()

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Trained parameters of this rank, by the graph's names; `prepare` may replace them."""
        return self._held

    @property
    def groups(self) -> Groups:
        """Process groups of this rank."""
        return self._groups

    @property
    def hooks(self) -> Replicas:
        """Hooks that an executor calls around backward passes."""
        return self

    def prepare(self) -> None:
        """Make values equal on all replicas and on all holders of a tied parameter; then shard.

        Collective. With sharding, parameters are other objects afterwards.
        """
        every = owned_params(self._stages, self._graph, trained=False)
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
        grad_clipping.register(self)

    @property
    def held(self) -> Mapping[str, nn.Parameter]:
        """All parameters of this rank by the graph's names, including frozen ones."""
        return self._every

    @property
    def has_losses(self) -> bool:
        """True if this rank has the last stage, and with it the loss."""
        return self._schedule.rank_of[-1] == self._groups.pp_rank

    def counted_elsewhere(self) -> Iterable[nn.Parameter]:
        """Return tied parameters whose first holder is another rank of the pipeline."""
        return self._elsewhere

    def share_buffers(self) -> None:
        """Copy buffers that forward passes change from the first replica to all; collective."""
        found = {
            id(buffer): buffer
            for number in sorted(self._stages)
            for call in self._stages[number].route.calls
            if call.has_state
            for buffer in self._stages[number].get_submodule(call.module).buffers()
        }
        broadcast(found.values(), self._groups.of(Axis.RDP), self._fusion_bytes)

    def begin(self) -> None:
        """Begin a step; put gradients of earlier steps aside until `finish`."""
        self._is_open = False  # a failed step may have left it open
        self.rest()
        self._is_open = True
        self._follow()
        self._ended.clear()
        self._means.begin()
        self._stash = {name: p.grad for name, p in self._every.items() if p.grad is not None}
        for parameter in self._every.values():
            parameter.grad = None

    def before_backward(self, stage: int, is_last: bool) -> None:
        """Do nothing; the executor calls this before each backward pass."""

    def after_backward(self, stage: int, is_last: bool) -> None:
        """Start the reduction after the last backward pass of a step; the executor calls this."""
        if is_last:
            self._end(stage)

    def _end(self, stage: int) -> None:
        if not self._ended:
            self._follow()  # may have changed between passes of a series
        self._ended.add(stage)
        self._means.end(stage)
        if self._shards is not None:
            self._shards.end(stage)

    def finish(self) -> None:
        """Wait for reductions, sum tied gradients, and add the gradients of earlier steps."""
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
        """Free the parameters that sharding gathered for forward passes alone.

        Between `begin` and `finish` they stay, since they have gradients.
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
        faults.append(
            OptionError(f"sharding is {sharding!r}", why, f"Use one of {names}", about="sharding")
        )
    if sharding == "none" and bf16:
        why = "parameters are cast as they are gathered from shards"
        hint = "Use torch.autocast in the step, or sharding='optimizer'"
        faults.append(OptionError("bf16 is True and sharding is 'none'", why, hint, about="bf16"))
    if sharding == "none" and shard_degree is not None:
        why = "it counts the ranks that share one copy, and nothing is shared out"
        hint = "Leave it out, or set sharding"
        faults.append(
            OptionError(f"shard_degree is {shard_degree!r}", why, hint, about="shard_degree")
        )
    elif shard_degree is not None and (shard_degree < 1 or replicas % shard_degree):
        why = f"the {replicas} replicas are cut into groups of it"
        hint = f"Use one of {', '.join(str(n) for n in _divisors(replicas))}"
        faults.append(
            OptionError(f"shard_degree is {shard_degree!r}", why, hint, about="shard_degree")
        )
    return faults


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
