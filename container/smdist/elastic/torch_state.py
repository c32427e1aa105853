# SPDX-License-Identifier: Apache-2.0
"""State of an elastic training with torch: module, optimizer, learning rate scheduler, sampler."""

from __future__ import annotations

import io
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from smdist.elastic.elastic_sampler import ElasticSampler
from smdist.elastic.framework_world import FrameworkWorld
from smdist.elastic.state import State
from smdist.elastic.torch_world import TorchWorld


class TorchState(State):
    """State of a training with torch. Its module is not wrapped; wrap it in `train`.

        state = TorchState(model, optimizer, sampler=sampler, epoch=0)

    A commit copies all parameters, buffers and states of the optimizer into the host's memory.

    Args:
        model: The module itself, not DistributedDataParallel, which belongs to one world.
        optimizer: Its optimizer.
        scheduler: A learning rate scheduler of the optimizer, or None. Default None.
        sampler: The sampler of the training data, or None. Default None.
        values: Further values such as `epoch=0`: numbers, texts, lists and dicts of these. Each is
            an attribute of the state.

    Raises:
        OptionError: A value has the name of an attribute of the state, or is of another type.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        sampler: ElasticSampler | None = None,
        **values: Any,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        super().__init__(sampler, values)

    def world(self) -> FrameworkWorld:
        """Return torch's default process group."""
        return TorchWorld()

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rates of all parameter groups and of the scheduler."""
        for group in self.optimizer.param_groups:
            for name in ("lr", "initial_lr"):
                if name in group:
                    group[name] = group[name] * factor
        if self.scheduler is not None:
            self.scheduler.base_lrs = [rate * factor for rate in self.scheduler.base_lrs]

    def _copy_content(self) -> dict[str, Any]:
        scheduler = self.scheduler
        return {
            "model": _copied(self.model.state_dict()),
            "optimizer": _copied(self.optimizer.state_dict()),
            "scheduler": None if scheduler is None else _copied(scheduler.state_dict()),
        }

    def _load_content(self, content: dict[str, Any]) -> None:
        self.optimizer.zero_grad(set_to_none=True)  # views into the buckets of a former wrapper
        self.model.load_state_dict(content["model"])
        # copied, because the optimizer keeps and changes the tensors that it is given
        self.optimizer.load_state_dict(_copied(content["optimizer"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(_copied(content["scheduler"]))

    def _broadcast(self, committed: dict[str, Any]) -> dict[str, Any]:
        is_first = self.world().rank() == 0
        data = torch.empty(0, dtype=torch.uint8)
        if is_first:
            buffer = io.BytesIO()
            torch.save(committed, buffer)
            data = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
        length = torch.tensor([data.numel()])
        self._broadcast_tensor(length)
        if not is_first:
            data = torch.empty(int(length), dtype=torch.uint8)
        self._broadcast_tensor(data)
        if is_first:
            return committed
        buffer = io.BytesIO(data.numpy().tobytes())
        received: dict[str, Any] = torch.load(buffer, weights_only=True)
        return received

    def _broadcast_tensor(self, tensor: torch.Tensor) -> None:
        """Replace the tensor's content by that of rank 0."""
        dist.broadcast(tensor, 0)


def _copied(value: Any) -> Any:
    """Return a copy of nested dicts, lists and tuples, with their tensors in the host's memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(each) for each in value)
    return value
