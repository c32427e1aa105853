# SPDX-License-Identifier: Apache-2.0
"""A barrier that says who did not come."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None
) -> None:
    """Wait until every rank of the group is here, or say which are not.

    torch.distributed.monitored_barrier serves Gloo alone; this is ours. As every
    failure does, a late rank ends the job's engine on all ranks.

    Args:
        group: Default: all ranks.
        timeout: Default: the group's.

    Raises:
        DistBackendError: Time is over; the message names all ranks that did not come.
    """
    options = BarrierOptions()
    if timeout is not None:
        options.timeout = timeout
    process_group = group or dist.group.WORLD
    if process_group is None:
        raise ValueError(
            "monitored_barrier() came before init_process_group(); call that one first"
        )
    process_group.barrier(opts=options).wait()
