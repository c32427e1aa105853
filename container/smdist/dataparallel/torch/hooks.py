# SPDX-License-Identifier: Apache-2.0
"""bfloat16 communication hooks for DistributedDataParallel that work with the backend smdist.

    from smdist.dataparallel.torch.hooks import bf16_compress_hook

    model.register_comm_hook(None, bf16_compress_hook)

torch has bfloat16 hooks, too, but refuses them if torch was built without NCCL and XCCL. Such a
torch accepts the hooks of this module. torch's own fp16_compress_hook and PowerSGD work with smdist
unchanged.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

# No `from __future__ import annotations` here: DDP compares the annotations of a hook with the
# classes themselves.
Hook = Callable[[Any, GradBucket], Future[torch.Tensor]]


def bf16_compress_hook(
    process_group: dist.ProcessGroup | None, bucket: GradBucket
) -> Future[torch.Tensor]:
    """Average a bucket's gradients over the ranks in bfloat16, with half the bytes of float32.

    Each rank rounds its gradients to bfloat16 once. The engine computes the average in float32 and
    rounds it once more. torch's own hook has a third rounding, because it divides the bfloat16
    gradients on each rank. Source: torch.distributed.algorithms.ddp_comm_hooks.

    Args:
        process_group: The state passed to register_comm_hook(): the group that averages; None
            for all ranks.
        bucket: The gradient bucket that DDP passes.

    Returns:
        A future of the averaged bucket, in the gradients' own dtype.
    """
    full = bucket.buffer()
    small = full.to(torch.bfloat16)
    work = dist.all_reduce(small, dist.ReduceOp.AVG, group=process_group, async_op=True)
    assert work is not None
    future: Future[torch.Tensor] = work.get_future().then(lambda done: full.copy_(done.value()[0]))
    return future


# a name of its own, since DDP refuses hooks with the name of torch's
bf16_compress_hook.__name__ = "smdist_bf16_compress_hook"


def bf16_compress_wrapper(hook: Hook) -> Hook:
    """Return a hook that casts gradients to bfloat16, calls `hook`, and casts its result back.

    As in torch, `hook` must divide by the number of ranks if an average is wanted.
    Source: torch.distributed.algorithms.ddp_comm_hooks.
    """

    def compressed(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
        full = bucket.buffer()
        bucket.set_buffer(full.to(torch.bfloat16))
        return hook(state, bucket).then(lambda done: full.copy_(done.value()))

    return compressed
