# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel with the job's fusion buffers."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from sagemaker_dist.contract import DataParallel, MiB
from sagemaker_dist.errors import require
from smdist.config import read_rank_config


class DistributedDataParallel(TorchDistributedDataParallel):
    """Average gradients in fusion buffers of the size the job was given.

    In torch the bucket is the fusion buffer: this sets `bucket_cap_mb` from
    `DataParallel.fusion_bytes` and lets gradients live in the buckets
    (`gradient_as_bucket_view`), which saves a copy. Everything else, also every
    other argument, is torch's.

    Args:
        module: The model, on the CPU.
        fusion_bytes: Bytes per buffer; default what the job was given, 25 MiB.

    Raises:
        OptionError: Both `fusion_bytes` and `bucket_cap_mb` are given, or
            `fusion_bytes` is out of range.
    """

    def __init__(
        self, module: nn.Module, *args: Any, fusion_bytes: int | None = None, **kwargs: Any
    ) -> None:
        require(
            fusion_bytes is None or "bucket_cap_mb" not in kwargs,
            what=f"fusion_bytes is {fusion_bytes!r} beside bucket_cap_mb",
            why="both set the size of the same buffer",
            mend="Keep fusion_bytes",
        )
        asked = fusion_bytes or read_rank_config().fusion_bytes
        options = DataParallel(fusion_bytes=asked) if asked else DataParallel()
        self.fusion_bytes = options.fusion_bytes
        kwargs.setdefault("bucket_cap_mb", self.fusion_bytes / MiB)
        kwargs.setdefault("gradient_as_bucket_view", True)
        super().__init__(module, *args, **kwargs)
