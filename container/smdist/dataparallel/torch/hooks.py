# SPDX-License-Identifier: Apache-2.0
"""Communication hooks for DDP that torch keeps for NCCL, and smdist can serve.

    from smdist.dataparallel.torch.hooks import bf16_compress_hook
    model.register_comm_hook(None, bf16_compress_hook)

torch's DistributedDataParallel refuses hooks of these names, by their names, where
torch was built without NCCL or XCCL, and accepts them elsewhere on every backend.
Its fp16_compress_hook and PowerSGD work as they are.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

# DDP compares annotations with the classes: here they must not be strings.
Hook = Callable[[Any, GradBucket], Future[torch.Tensor]]


def bf16_compress_hook(
    process_group: dist.ProcessGroup | None, bucket: GradBucket
) -> Future[torch.Tensor]:
    """Average gradients as bfloat16: half the bytes of float32, with its range.

    Each gradient is rounded to bfloat16 once on its rank and once more after the
    average, which the engine takes in float32; torch's own hook also rounds a
    division on every rank. Source: torch.distributed.algorithms.ddp_comm_hooks.

    Args:
        process_group: The hook's state: who averages; None is all ranks.
        bucket: What DDP hands over.
    """
    full = bucket.buffer()
    small = full.to(torch.bfloat16)
    work = dist.all_reduce(small, dist.ReduceOp.AVG, group=process_group, async_op=True)
    assert work is not None
    future: Future[torch.Tensor] = work.get_future().then(lambda done: full.copy_(done.value()[0]))
    return future


bf16_compress_hook.__name__ = "smdist_bf16_compress_hook"  # DDP refuses torch's own name


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Let another hook work on gradients in bfloat16; its result is cast back.

    Source: torch.distributed.algorithms.ddp_comm_hooks. As there, the hook divides
    by the number of ranks, if that is wanted.
    """

    def compressed(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        full = bucket.buffer()
        bucket.set_buffer(full.to(torch.bfloat16))
        return hook(state, bucket).then(lambda done: full.copy_(done.value()))

    return compressed
