# SPDX-License-Identifier: Apache-2.0
"""Parameters that stages on several ranks hold: each has all of the gradient in the end.

Every holder sends its gradient to the others of its pipeline, and each adds them in the order of
stages, so that all have the same bits. Where gradients are shards, shards travel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdist.modelparallel.core.placement import Tie
from smdist.modelparallel.torch.replicas.held import (
    HeldParameter,
    flags,
    flattened,
    set_gradient,
)

_TAG = 1 << 20  # activations of the step, which also travel here, have smaller ones


class Ties:
    """The tied parameters of one rank.

    Args:
        ties: All of the model's.
        rank_of: The pipeline's rank of each stage.
        held: What this rank holds.
        group: The pipeline.
    """

    def __init__(
        self,
        ties: Sequence[Tie],
        rank_of: Sequence[int],
        held: Sequence[HeldParameter],
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
        """Those whose first stage is on another rank."""
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
        """Sum gradients over the holders; None where none of them has one."""
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
