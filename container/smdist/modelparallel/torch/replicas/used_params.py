# SPDX-License-Identifier: Apache-2.0
"""Record of the sharded parameters that backward passes of a step gave a gradient.

If gradients are reduced in each backward pass, FSDP reduces zeros for parameters that a replica
does not use. A parameter that no replica used in a step has no gradient in the end, as in training
in one process, so that optimizers leave it unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist


class UsedParams:
    """Sharded parameters of this rank that have had a gradient since the last reduction."""

    def __init__(self) -> None:
        self._watched: set[int] = set()
        self._used: set[int] = set()

    def watch(self, parts: Iterable[Any]) -> None:
        """Note from now on when a backward pass computes a gradient of these parameters.

        Args:
            parts: `FSDPParam` objects of parameters that have been gathered; those that are watched
                already, or are frozen, are skipped.
        """
        for part in parts:
            whole, number = part._unsharded_param, id(part)
            if number not in self._watched and whole.requires_grad:
                self._watched.add(number)  # FSDP keeps its objects as long as the stage lives
                whole.register_post_accumulate_grad_hook(lambda _, n=number: self._used.add(n))

    def drop_unused(self, parts: Sequence[Any], group: dist.ProcessGroup) -> None:
        """Remove the gradients of parameters that no replica has used; all replicas must call this.

        Args:
            parts: `FSDPParam` objects of a stage, in the same order on all replicas.
            group: Process group of the replicas.
        """
        trained = [part for part in parts if part.sharded_param.requires_grad]
        if not trained:
            return
        found = [float(id(part) in self._used) for part in trained]
        has = torch.tensor(found, device=trained[0].sharded_param.device)
        dist.all_reduce(has, group=group)
        for part, count in zip(trained, has.tolist(), strict=True):
            if not count:
                part.sharded_param.grad = None
        self._used.difference_update(map(id, trained))
