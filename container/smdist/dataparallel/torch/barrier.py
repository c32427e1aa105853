# SPDX-License-Identifier: Apache-2.0
"""Barrier that names the ranks which did not arrive."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions


def monitored_barrier(
    group: dist.ProcessGroup | None = None, timeout: timedelta | None = None
) -> None:
    """Wait until every rank of the group has arrived, or name those that have not.

    torch.distributed.monitored_barrier supports only Gloo; this one supports smdist. As with
    every failure, a late rank ends the job's engine on all ranks.

    Args:
        group: The process group; default all ranks.
        timeout: Time to wait; default the group's timeout.

    Raises:
        DistBackendError: The timeout has passed; the message names all ranks that did not arrive.
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
