# SPDX-License-Identifier: Apache-2.0
"""Barrier whose error names the ranks that did not call it in time."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None
) -> None:
    """Wait until all ranks of the group have called this function.

    torch.distributed.monitored_barrier supports only Gloo; this function supports smdist. After
    its error, as after every failure of a collective, no more collectives work on any rank.

    Args:
        group: The process group; by default all ranks.
        timeout: Time to wait; by default the group's timeout.

    Raises:
        DistBackendError: The timeout has passed; the message names all ranks that did not call.
        ValueError: init_process_group() was not called.
    """
    options = BarrierOptions()
    if timeout is not None:
        options.timeout = timeout
    process_group = group or dist.group.WORLD
    if process_group is None:
        raise ValueError(
            "monitored_barrier() was called before init_process_group(): there is no process group."
            " Call torch.distributed.init_process_group() first"
        )
    process_group.barrier(opts=options).wait()
