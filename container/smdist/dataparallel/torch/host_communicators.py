# SPDX-License-Identifier: Apache-2.0
"""Communicators among the GPUs of one host: those of NCCL, which torch has loaded.

Nothing here loads a library. torch's own ProcessGroupNCCL is the only way to NCCL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Store

# NCCL's own watchdog ends the process at its timeout; the engine's timeout comes first
_LATER: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCommunicators:
    """Functions for the communicators among the devices of one type on one host.

    Attributes:
        name: Name of the library, for messages.
        fault: Returns why this process cannot use it for a device; "" if it can.
        identity: Returns the identity of a device, equal for two processes if and only if they
            use the same one.
        create: Makes and connects the communicator of this rank. Arguments: a store of the ranks
            of this host, the rank's number among them, their number, the longest duration of a
            collective, the device, and whether the communicator's stream has a high priority.
    """

    name: str
    fault: Callable[[torch.device], str]
    identity: Callable[[torch.device], str]
    create: Callable[[Store, int, int, timedelta, torch.device, bool], Backend]


def _nccl_fault(_: torch.device) -> str:
    return "" if dist.is_nccl_available() else "this torch was built without NCCL"


def _cuda_identity(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def connected_nccl(
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    device: torch.device,
    has_high_priority: bool,
    *,
    later: timedelta = timedelta(0),
) -> Backend:
    """Return a connected communicator of NCCL: an object of torch's own ProcessGroupNCCL.

    Args:
        store: Store of the ranks of the communicator.
        rank: Number of this rank among them.
        size: Number of these ranks.
        timeout: Longest duration of an operation.
        device: Device of this rank.
        has_high_priority: True for a stream of high priority.
        later: Time after `timeout` at which NCCL's watchdog ends the process.
    """
    from torch._C._distributed_c10d import ProcessGroupNCCL  # a build without NCCL has none

    options = ProcessGroupNCCL.Options(is_high_priority_stream=has_high_priority)
    options._timeout = timeout + later
    group = ProcessGroupNCCL(store, rank, size, options)
    group.eager_connect_single_device(device)
    return group


NCCL: Final = HostCommunicators(
    name="NCCL",
    fault=_nccl_fault,
    identity=_cuda_identity,
    create=partial(connected_nccl, later=_LATER),
)

# By type of device; tests add their own device.
BY_DEVICE: Final[dict[str, HostCommunicators]] = {"cuda": NCCL}
