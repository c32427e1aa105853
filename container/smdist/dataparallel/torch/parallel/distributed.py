# SPDX-License-Identifier: Apache-2.0
"""Class DistributedDataParallel with the arguments of SMDDP 1.0 to 1.3.

    from smdist.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP

The arguments are in SMDDP's order; torch's class has another argument, `dim`, between
`output_device` and `broadcast_buffers`. Source: SageMaker's documentation of SMDDP, PyTorch API.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn

from smdist.dataparallel.torch import ddp


class DistributedDataParallel(ddp.DistributedDataParallel):
    """smdist's DistributedDataParallel with SMDDP's constructor; it averages gradients over ranks.

    Three things work here that SMDDP refused: `broadcast_buffers=True`, groups
    other than WORLD, and, by keyword, every other argument of torch's
    DistributedDataParallel and of smdist's.

    Args:
        module: The model; its parameters must be equal on all ranks.
        device_ids: The argument of torch's class; None for a model on the CPU.
        output_device: The argument of torch's class; None for a model on the CPU.
        broadcast_buffers: True if rank 0 sends its buffers to all ranks before each forward pass.
        process_group: The group that averages; by default all ranks.
        bucket_cap_mb: MiB per bucket; by default the job's value, which is 25 if not set.
        options: Other arguments of torch's class, and `fusion_bytes` or `progress_seconds`.

    Raises:
        ValueError: init_process_group() was not called.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Any = None,
        output_device: Any = None,
        broadcast_buffers: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        **options: Any,
    ) -> None:
        if bucket_cap_mb is not None:
            options["bucket_cap_mb"] = bucket_cap_mb
        super().__init__(
            module,
            device_ids=device_ids,
            output_device=output_device,
            broadcast_buffers=broadcast_buffers,
            process_group=process_group,
            **options,
        )
