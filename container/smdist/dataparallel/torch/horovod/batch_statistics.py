# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm: batch normalization with the statistics of the batches of all ranks."""

from __future__ import annotations

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from sagemaker_dist.errors import require
from smdist.dataparallel.torch.horovod.allgather_calls import allgather_with_summed_gradient
from smdist.dataparallel.torch.horovod.process_set import (
    check_initialized,
    global_process_set,
)


class SyncBatchNorm(_BatchNorm):
    """Batch normalization over the batches of all ranks, which may have different sizes.

    In training, the mean and variance of each channel are those of all ranks' values, and so are
    the gradients through them. Otherwise, and in a job of one rank, it is torch's BatchNorm. The
    constructor has torch's arguments.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  torch's name
        """Normalize a batch of at least 2 dimensions, whose dimension 1 has the channels.

        Raises:
            OptionError: The batch has fewer dimensions.
            HorovodInternalError: A rank was lost.
        """
        self._check_input_dim(input)
        if self.training:
            check_initialized("SyncBatchNorm")
        if not self.training or global_process_set.size() == 1:
            return super().forward(input)
        channels = input.transpose(0, 1).flatten(1)  # one row for each channel
        wide = channels.float() if channels.dtype.itemsize < 4 else channels
        mean, variance, count = _statistics(wide)
        self._track(mean.detach(), variance.detach(), count)
        shape = [1, -1] + [1] * (input.dim() - 2)
        scale = torch.rsqrt(variance + self.eps)
        result = (input - mean.view(shape)) * scale.view(shape)
        if self.affine:
            result = result * self.weight.view(shape) + self.bias.view(shape)
        return result.to(input.dtype)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  torch's name
        require(
            input.dim() >= 2,
            what=f"SyncBatchNorm got a tensor with {input.dim()} dimensions",
            why="dimension 0 is the batch and dimension 1 the channels",
            hint="Pass a batch",
            about="input",
        )

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        share = self.momentum
        if share is None:  # torch's way to have the average of all batches
            share = 1.0 / float(self.num_batches_tracked)
        unbiased = variance * (count / max(count - 1, 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def _statistics(channels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Return mean and variance of each channel over all ranks, and the number of values."""
    size = channels.shape[1]
    own_mean = channels.mean(1) if size else channels.sum(1)
    own_squares = ((channels - own_mean[:, None]) ** 2).sum(1)
    count = torch.full_like(own_mean, size)
    every = allgather_with_summed_gradient(torch.stack([count, own_mean, own_squares])[None])
    counts, means, squares = every[:, 0], every[:, 1], every[:, 2]
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean) ** 2).sum(0) / total
    return mean, variance, float(total[0].detach())
