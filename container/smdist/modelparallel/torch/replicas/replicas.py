# SPDX-License-Identifier: Apache-2.0
"""Data parallelism of a rank's stages: equal values at the start, reduced gradients in each step.

A tied parameter is held by stages on several ranks of a pipeline. Its gradients are summed over
these ranks: every rank sends its gradient to the others, and adds all gradients in the order of
stages. So the sums are bitwise equal. If gradients are sharded, only shards are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from sagemaker_dist.errors import raise_all
from smdist.modelparallel.core.graph import Graph
from smdist.modelparallel.core.placement import Placement, Tie
from smdist.modelparallel.core.rank_layout import Axis
from smdist.modelparallel.core.schedule.actions import Schedule
from smdist.modelparallel.core.simulate import FUSION_BYTES
from smdist.modelparallel.torch.accelerator import accelerator_of
from smdist.modelparallel.torch.materialization.stage_module import StageModule
from smdist.modelparallel.torch.replicas import grad_clipping
from smdist.modelparallel.torch.replicas.fsdp_shards import Shards, keeps_gathered
from smdist.modelparallel.torch.replicas.gradient_buckets import (
    GradientBuckets,
    added,
    flags,
    flattened,
    set_gradient,
)
from smdist.modelparallel.torch.replicas.host_update import HostUpdate
from smdist.modelparallel.torch.replicas.master_weights import MasterWeights
from smdist.modelparallel.torch.replicas.owned_params import OwnedParam, broadcast, owned_params
from smdist.modelparallel.torch.replicas.sharding_checks import reduction_faults, sharding_faults
from smdist.modelparallel.torch.session.device_p2p import shared_p2p
from smdist.modelparallel.torch.session.process_groups import Groups
from smdist.modelparallel.torch.tensor_splits import split_of

_TAG = 1 << 20  # no message between stages, in the same group, has this tag


class TiedParams:
    """Tied parameters of one rank, which stages on other ranks of the pipeline hold, too.

    Args:
        ties: Tied parameters of the whole model, with their stages.
        rank_of: Pipeline rank of each stage, by stage number.
        held: Parameters that this rank holds, tied or not.
        group: Process group of the pipeline.
    """

    def __init__(
        self,
        ties: Sequence[Tie],
        rank_of: Sequence[int],
        held: Sequence[OwnedParam],
        group: dist.ProcessGroup,
    ) -> None:
        self._group = group
        device = accelerator_of(each.parameter for each in held) or torch.device("cpu")
        self._p2p = shared_p2p(group, device, "ties")
        self._place = device if self._p2p.is_direct else torch.device("cpu")
        own = {each.name: each.parameter for each in held}
        self._families: dict[tuple[int, ...], list[nn.Parameter]] = {}
        self._holders = [tuple(dict.fromkeys(rank_of[s] for s in tie.stages)) for tie in ties]
        for tie, holders in zip(ties, self._holders, strict=True):
            if len(holders) > 1 and group.rank() in holders and tie.parameter in own:
                self._families.setdefault(holders, []).append(own[tie.parameter])

    def connect(self) -> None:
        """Connect the ranks that hold the same parameters; all ranks of the group must call this.

        Raises:
            DistBackendError: Ranks could not be connected.
        """
        self._p2p.connect(pair for holders in self._holders for pair in permutations(holders, 2))

    def counted_elsewhere(self) -> Iterator[nn.Parameter]:
        """Yield this rank's tied parameters that another rank counts in the norm of gradients.

        A tied parameter is held by several ranks, and counts on the rank of its first stage.
        """
        for holders, parameters in self._families.items():
            if holders[0] != self._group.rank():
                yield from parameters

    def broadcast(self) -> None:
        """Copy each tied parameter's values from the rank of its first stage to its other ranks."""
        with torch.no_grad():
            for holders, parameters in self._families.items():
                for parameter in parameters:
                    self._broadcast(holders, parameter)

    def _broadcast(self, holders: tuple[int, ...], parameter: nn.Parameter) -> None:
        """Copy a parameter's values from one rank to others.

        Args:
            holders: Pipeline ranks that hold the parameter; the first one sends.
            parameter: Parameter of this rank.
        """
        values = parameter.detach().contiguous().to(self._place)
        if holders[0] == self._group.rank():
            for other in holders[1:]:
                self._p2p.isend(values, other, _TAG).wait()
        else:
            values = torch.empty_like(values)
            self._p2p.irecv(values, holders[0], _TAG).wait()
            parameter.copy_(values)

    def finish(self) -> None:
        """Sum the gradients of each tied parameter over the ranks that hold it.

        The gradient becomes None if none of these ranks has a gradient.
        """
        with torch.no_grad():
            for holders, parameters in self._families.items():
                for alike in _by_dtype(parameters):
                    self._sum(holders, alike)

    def _sum(self, holders: tuple[int, ...], parameters: list[nn.Parameter]) -> None:
        """Sum the gradients of some tied parameters over the ranks that hold them.

        Args:
            holders: Pipeline ranks that hold all of these parameters.
            parameters: Parameters of this rank, all of one dtype.
        """
        vectors = flattened(parameters)
        own = torch.cat([*vectors, flags(parameters, like=vectors[0])])
        total = self._total(holders, own.to(self._place)).to(own.device)
        lengths = [len(vector) for vector in vectors]
        *sums, has_gradient = torch.split(total, [*lengths, len(parameters)])
        for parameter, found, has in zip(parameters, sums, has_gradient.tolist(), strict=True):
            set_gradient(parameter, found if has > 0 else None)

    def _total(self, holders: tuple[int, ...], own: Tensor) -> Tensor:
        """Exchange vectors with other ranks, and return their sum.

        Each rank adds all vectors in the order of `holders`. So the sum is bitwise equal on all
        ranks.

        Args:
            holders: Pipeline ranks that take part, including this rank.
            own: Vector of this rank.
        """
        by_rank: Mapping[int, Tensor] = {
            rank: own if rank == self._group.rank() else torch.empty_like(own) for rank in holders
        }
        works: list[Any] = []
        for rank, vector in by_rank.items():
            if vector is not own:
                works.append(self._p2p.irecv(vector, rank, _TAG))
                works.append(self._p2p.isend(own, rank, _TAG))
        for work in works:
            work.wait()
        total = by_rank[holders[0]].clone()
        for rank in holders[1:]:
            total += by_rank[rank]
        return total


def _by_dtype(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Return the parameters in lists, one for each dtype."""
    found: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        found.setdefault(parameter.dtype, []).append(parameter)
    return list(found.values())


class Replicas:
    """Data parallelism of one rank's stages: keeps replicas equal, and reduces gradients.

    Args:
        stages: Stages of this rank, by number.
        placement: Placement of the whole model, with its tied parameters.
        schedule: Schedule of a step.
        groups: Process groups of this rank.
        graph: Graph of the whole model, with the names of its parameters.
        sharding: Sharding of each stage over its replicas: "none", "optimizer" (the optimizer state
            is sharded) or "full" (parameters, too).
        shard_degree: Number of replicas over which one copy is sharded; None for all replicas.
        gradient_reduction: Time at which gradients are reduced to shards: "step", after the last
            microbatch, or "microbatch", in each backward pass.
        bf16: True to compute in bfloat16. With sharding, parameters stay in float32; without it,
            the stages already have parameters in bfloat16, which get master weights.
        fp16: True to compute in float16, in the same way, with a loss that is scaled.
        offloads_optimizer: True to keep optimizer state and master weights in the host's memory, if
            parameters are on an accelerator.
        fusion_bytes: Largest size of the buffer of one all-reduce, in bytes; a larger parameter has
            a buffer of its own.

    Raises:
        OptionError: Options contradict each other, or do not fit the number of replicas. All faults
            are reported at once.
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
        gradient_reduction: str = "step",
        bf16: bool = False,
        fp16: bool = False,
        offloads_optimizer: bool = False,
        fusion_bytes: int = FUSION_BYTES,
    ) -> None:
        self._stages, self._placement, self._schedule = stages, placement, schedule
        self._groups, self._graph, self._fusion_bytes = groups, graph, fusion_bytes
        faults = sharding_faults(groups.rdp_size, sharding, shard_degree)
        raise_all([*faults, *reduction_faults(gradient_reduction, sharding, schedule)])
        self._reduces_often = gradient_reduction == "microbatch"
        self._sharding, self._dtype = sharding, half_dtype(bf16=bf16, fp16=fp16)
        self._masters: MasterWeights | None = None
        self._offloads_optimizer = offloads_optimizer
        self._host_update: HostUpdate | None = None
        self._shard_degree = shard_degree or groups.rdp_size
        self._shards: Shards | None = None
        self._stash: dict[str, Tensor] = {}
        self._ended: set[int] = set()
        self._is_open = False
        self._is_reducing = False
        self._collect()

    def _collect(self, before: GradientBuckets | None = None) -> None:
        """Store the lists of this rank's parameters.

        These are all parameters, trained parameters, parameters whose gradients are averaged over
        replicas, tied parameters, whose gradients are summed over ranks of the pipeline, and stages
        with collectives of their own in backward passes.

        Args:
            before: Buckets of the lists that are replaced.
        """
        group = self._groups.of(Axis.RDP)
        every = owned_params(self._stages, self._graph, trained=False)
        held = [each for each in every if each.parameter.requires_grad]
        self._every = {each.name: each.parameter for each in every}
        self._held = {each.name: each.parameter for each in held}
        whole = [each for each in held if not isinstance(each.parameter, DTensor)]
        self._means = GradientBuckets(whole, group, self._fusion_bytes, before)
        self._ties = self._ties_of(held)
        # With all-reduces of buckets beside those of SyncBatchNorm, replicas that use different
        # parameters could start the two in different orders, in the same process group.
        self._synchronized = {
            number
            for number, stage in self._stages.items()
            if any(isinstance(each, nn.SyncBatchNorm) for each in stage.modules())
        }
        self._elsewhere = list(self._ties_of(every).counted_elsewhere())

    def _ties_of(self, held: Sequence[OwnedParam]) -> TiedParams:
        """Return the tied parameters in `held`, which stages on other ranks hold, too."""
        pipeline = self._groups.of(Axis.PP)
        return TiedParams(self._placement.ties, self._schedule.rank_of, held, pipeline)

    def _update_trained(self) -> None:
        """Update the lists of trained parameters if the script has frozen or unfrozen some.

        The script must freeze and unfreeze parameters on all ranks.
        """
        trained = [name for name, p in self._every.items() if p.requires_grad]
        if trained == list(self._held):
            return
        self._collect(self._means)
        if self._shards is not None:
            self._shards.retrain()

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """Trained parameters of this rank, by name; `prepare` replaces them if they are sharded."""
        return self._held

    @property
    def groups(self) -> Groups:
        """Process groups of this rank."""
        return self._groups

    @property
    def hooks(self) -> Replicas:
        """Hooks for an executor, which calls them before and after each backward action.

        The methods of this object are the hooks, so the object itself is returned.
        """
        return self

    def prepare(self) -> None:
        """Make parameters equal on all ranks that hold them, then shard; all ranks must call this.

        First, tied parameters are copied from the rank of their first stage. Then all parameters
        and buffers are copied from replica 0, and whole ones from the first rank of those that
        share split tensors. With sharding, parameters are new objects afterwards. At last, master
        weights are made, if this rank computes in 16 bits.
        """
        every = owned_params(self._stages, self._graph, trained=False)
        ties = self._ties_of(every)
        ties.connect()
        ties.broadcast()
        buffers = {id(b): b for stage in self._stages.values() for b in stage.buffers()}
        tensors = [*(each.parameter for each in every), *buffers.values()]
        broadcast(tensors, self._groups.of(Axis.RDP), self._fusion_bytes)
        whole = [tensor for tensor in tensors if split_of(tensor) is None]
        broadcast(whole, self._groups.of(Axis.TP), self._fusion_bytes)
        if self._sharding != "none":
            splits = self._schedule.splits_backward
            self._shards = Shards(
                self._stages,
                self._groups,
                shard_degree=self._shard_degree,
                keeps=keeps_gathered(self._sharding, splits_backward=splits),
                reduces_often=self._reduces_often,
                dtype=self._dtype,
            )
            self._collect()
        self._host_update = self._made_host_update()
        scaled = self._dtype is torch.float16
        if self._dtype is not None and (scaled or self._sharding == "none"):
            self._masters = MasterWeights(
                self._every.values(), self._dtype, scaled=scaled, host=self._host_update
            )
        grad_clipping.register(self)

    def _made_host_update(self) -> HostUpdate | None:
        """Return the object that runs optimizer steps on the CPU, if the option asks for it."""
        held = self._every.values()
        is_used = self._offloads_optimizer and accelerator_of(held) is not None
        return HostUpdate(held) if is_used else None

    def follow(self) -> None:
        """Follow the parameters to the device to which the script has moved them, on all ranks."""
        self._ties = self._ties_of(owned_params(self._stages, self._graph))
        self._ties.connect()
        found = self._made_host_update()
        if found is None or self._host_update is None:
            self._host_update = found
        if self._masters is not None:
            self._masters.follow(self._host_update)

    @property
    def host_update(self) -> HostUpdate | None:
        """Object that runs optimizer steps on the CPU; None if they run where parameters are."""
        return self._host_update

    @property
    def masters(self) -> MasterWeights | None:
        """Master weights of this rank; None if the optimizer updates the parameters themselves."""
        return self._masters

    @property
    def held(self) -> Mapping[str, nn.Parameter]:
        """All parameters of this rank by name, including frozen ones."""
        return self._every

    @property
    def has_losses(self) -> bool:
        """True if this rank has the last stage, and with it the loss."""
        return self._schedule.rank_of[-1] == self._groups.pp_rank

    def counted_elsewhere(self) -> Iterable[nn.Parameter]:
        """Return this rank's tied parameters that another pipeline rank counts in the norm.

        A tied parameter is held by several ranks, and counts on the rank of its first stage.
        """
        return self._elsewhere

    def broadcast_buffers(self) -> None:
        """Copy buffers that forward passes change (BatchNorm) from replica 0 to all replicas."""
        found = {
            id(buffer): buffer
            for number in sorted(self._stages)
            for call in self._stages[number].route.calls
            if call.has_state
            for buffer in self._stages[number].get_submodule(call.module).buffers()
        }
        if found:
            broadcast(found.values(), self._groups.of(Axis.RDP), self._fusion_bytes)

    def begin(self) -> None:
        """Begin a step; set aside the gradients of earlier steps until `finish`."""
        self._is_open = False  # may still be True after a failed step
        self._means.begin()
        self.rest()
        self._is_open = True
        self._update_trained()
        self._ended.clear()
        self._is_reducing = False
        self._stash = {name: p.grad for name, p in self._every.items() if p.grad is not None}
        for parameter in self._every.values():
            parameter.grad = None

    def before_backward(self, stage: int, is_last: bool, *, overlaps: bool = True) -> None:
        """Prepare to reduce a stage's gradients; the executor calls this before a backward action.

        In the last backward action, gradients are averaged over replicas as they become complete.

        Args:
            stage: Number of the stage.
            is_last: True if the action is the stage's last backward action in the step.
            overlaps: False to average all gradients after the backward action.
        """
        if is_last and overlaps and self._shards is None and stage not in self._synchronized:
            self._follow_script()
            self._means.watch(stage)
        if self._shards is not None:
            self._shards.before_backward(stage, is_last)

    def after_backward(self, stage: int, is_last: bool) -> None:
        """Start to reduce a stage's gradients after its last backward action in a step.

        The executor calls this after each backward action.

        Args:
            stage: Number of the stage.
            is_last: True if the action was the stage's last backward action in the step.
        """
        if is_last:
            self._end(stage)

    def _end(self, stage: int) -> None:
        """Start to reduce the gradients that are complete after a stage's last backward action."""
        self._follow_script()
        self._ended.add(stage)
        self._means.end(stage)
        if self._shards is not None:
            self._shards.end(stage)

    def _follow_script(self) -> None:
        """Update the lists of trained parameters, as long as no gradient was reduced."""
        if not self._is_reducing:
            self._update_trained()  # a script may freeze parameters between steps
        self._is_reducing = True

    def finish(self) -> None:
        """Finish the gradients of a step.

        Wait for the all-reduces over replicas. Sum the gradients of tied parameters over the ranks
        that hold them. Then add the gradients from before the step.
        """
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
        """Free whole parameters that forward passes outside of a step have gathered from shards.

        Between `begin` and `finish` this does nothing, since backward passes need the parameters.
        """
        if self._shards is not None and not self._is_open:
            self._shards.rest()


def half_dtype(*, bf16: bool, fp16: bool) -> torch.dtype | None:
    """Return the 16-bit dtype in which a model computes; None for the dtype of its parameters."""
    if fp16:
        return torch.float16
    return torch.bfloat16 if bf16 else None
