# SPDX-License-Identifier: Apache-2.0
"""State of an elastic training with the names of horovod.torch.elastic."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sagemaker_dist.errors import require
from smdist.dataparallel.rendezvous.world import World as RankWorld
from smdist.dataparallel.torch.horovod import broadcast_calls, current_job
from smdist.elastic.agent_client import ElasticStore, Generation
from smdist.elastic.framework_world import FrameworkWorld
from smdist.elastic.horovod_run import HorovodMethods, sampler_among
from smdist.elastic.torch_state import TorchState


class HorovodWorld:
    """The ranks that init() of smdist.dataparallel.torch.horovod has connected."""

    def size(self) -> int:
        """Return the number of ranks.

        Raises:
            OptionError: init() was not called, or uses the engine of torch.distributed.
        """
        require(
            current_job.owns_engine(),
            what="an elastic function of Horovod was called, and init() uses another's engine",
            why="torch.distributed was initialized with the backend smdist before, whose process"
            " group would stay as it is after a loss",
            hint="Call hvd.init() without init_process_group(), or use smdist.elastic",
            about="run",
            kind="conflict",
        )
        return current_job.size()

    def rank(self) -> int:
        """Return this rank's number."""
        return current_job.rank()

    def leave(self) -> None:
        """Disconnect this rank, if it is connected."""
        current_job.shutdown()

    def enter(self, generation: Generation, store: ElasticStore) -> None:
        """Connect this rank with the others of a generation."""
        world = RankWorld(
            rank=generation.rank,
            size=generation.size,
            local_rank=generation.local_rank,
            local_size=generation.local_size,
        )
        current_job.rejoin(world, store)


class HorovodTorchState(HorovodMethods, TorchState):
    """State of a training with the names of Horovod; its world is that of hvd.init().

        state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, batch=0, epoch=0)

    Args:
        model: The module.
        optimizer: Its optimizer, which may be a DistributedOptimizer.
        values: At most one ElasticSampler and one learning rate scheduler, and further values such
            as `epoch=0`: numbers, texts, lists and dicts of these. Each is an attribute of the
            state.

    Raises:
        OptionError: The model or the optimizer is missing, there are several samplers or
            schedulers, or a value is of another type.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **values: Any,
    ) -> None:
        missing = "model" if model is None else "optimizer" if optimizer is None else ""
        require(
            not missing,
            what=f"TorchState() was called without {missing or 'model'}",
            why="the state of the training consists of a module and its optimizer",
            hint="Pass TorchState(model, optimizer, ...)",
            about=missing or "model",
            kind="missing",
        )
        assert model is not None
        assert optimizer is not None
        sampler, rest = sampler_among(values)
        scheduler, plain = _scheduler_among(rest)
        super().__init__(model, optimizer, scheduler=scheduler, sampler=sampler, **plain)
        for name in values:
            if name not in plain and not hasattr(self, name):
                setattr(self, name, values[name])

    def world(self) -> FrameworkWorld:
        """Return the ranks that hvd.init() has connected."""
        return HorovodWorld()

    def _load_content(self, content: dict[str, Any]) -> None:
        reducer = getattr(self.optimizer, "_reducer", None)
        if reducer is not None:
            reducer.reset()  # a loss has left reductions that will never end
        super()._load_content(content)

    def _broadcast_tensor(self, tensor: torch.Tensor) -> None:
        broadcast_calls.broadcast_(tensor, 0)


def _scheduler_among(values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    kind = torch.optim.lr_scheduler.LRScheduler
    found = {name: each for name, each in values.items() if isinstance(each, kind)}
    require(
        len(found) < 2,
        what=f"the state has the schedulers {', '.join(found)}",
        why="a state keeps one learning rate scheduler",
        hint="Pass one scheduler, for example a ChainedScheduler",
        about="scheduler",
        kind="conflict",
    )
    rest = {name: each for name, each in values.items() if name not in found}
    return next(iter(found.values()), None), rest
