# SPDX-License-Identifier: Apache-2.0
"""Sends and receives of tensors on an accelerator, from device to device.

The backend that the process group has for the device decides how they travel:

    smdist        between hosts staged through pinned memory by the engine, with tags; within a host
                  by NCCL, if each rank has a GPU of its own
    NCCL          by NCCL
    any other     not from device to device; the caller copies tensors to the CPU

Ranks are connected for NCCL before their first message (`PairCommunicators`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor

from smdist.modelparallel.torch.accelerator import is_accelerator
from smdist.modelparallel.torch.session.pair_communicators import (
    COMMUNICATORS,
    Direction,
    PairCommunicators,
    connector,
)

TAGGED: Final = frozenset({"smdist", "smddp"})  # backends that match messages by their tags


def backend_name(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the name of a group's backend for a type of device, in lower case; "" if it has none.

    Args:
        group: Process group; it may have one backend for the CPU and another for a GPU.
        device: Device of tensors; only its type counts.
    """
    with suppress(RuntimeError):  # no backend for this type
        return str(group._get_backend(torch.device(device.type)).name()).lower()
    return ""


class DeviceP2P:
    """Sends and receives of one rank in a process group, for tensors of its device.

    Args:
        group: Process group; `peer` arguments are ranks in this group.
        device: Device of this rank's tensors.
        purpose: Name that is different for each object with the same group and the same on all
            ranks, such as "stages".

    Attributes:
        is_direct: True if the backend sends from device to device.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, purpose: str) -> None:
        self._reference = ref(group)
        name = backend_name(group, device)
        way = connector(name, name in TAGGED, device)
        self._pairs = PairCommunicators(way, device, purpose)
        self.is_direct = name in COMMUNICATORS or name in TAGGED

    @property
    def is_ordered(self) -> bool:
        """True if the messages of some rank have to be received in the order of sending."""
        return len(self._pairs) > 0

    @property
    def _group(self) -> dist.ProcessGroup:
        group = self._reference()
        assert group is not None
        return group

    def connect(self, directions: Iterable[Direction]) -> None:
        """Connect this rank with the ranks with which it will exchange messages.

        All ranks of the group call this method with the same directions, before the first message.

        Args:
            directions: Sending rank and receiving rank of each direction with messages.

        Raises:
            DistBackendError: Ranks could not be connected.
        """
        self._pairs.connect(self._group, directions)

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Any:
        """Start to send a contiguous tensor; return the handle of the transfer.

        Args:
            tensor: Tensor on this rank's device, or on the CPU if the backend is not direct. The
                transfer waits for the current stream.
            peer: Receiving rank.
            tag: Number of the message, which backends without tags ignore.
        """
        communicator = self._pairs.find(self._group.rank(), peer)
        if communicator is None:
            return dist.isend(tensor, group=self._group, group_dst=peer, tag=tag)
        return communicator.send([tensor], 1, 0)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Any:
        """Start to receive into a contiguous tensor; return the handle of the transfer.

        Args:
            tensor: Tensor on this rank's device, or on the CPU if the backend is not direct. The
                transfer waits for the current stream.
            peer: Sending rank.
            tag: Number of the message, which backends without tags ignore.
        """
        communicator = self._pairs.find(peer, self._group.rank())
        if communicator is None:
            return dist.irecv(tensor, group=self._group, group_src=peer, tag=tag)
        return communicator.recv([tensor], 0, 0)

    def abort(self) -> None:
        """End all transfers of this rank's own communicators, so that no stream waits for them."""
        self._pairs.abort()


_OfGroup = dict[tuple[str, str], DeviceP2P]  # by purpose and type of device
_shared: WeakKeyDictionary[dist.ProcessGroup, _OfGroup] = WeakKeyDictionary()


def shared_p2p(group: dist.ProcessGroup, device: torch.device, purpose: str) -> DeviceP2P:
    """Return the sends and receives of a group for one purpose, which all users share.

    So they share NCCL's communicators, too.

    Args:
        group: Process group of the ranks.
        device: Current device of this process, or the CPU.
        purpose: Name of the purpose, the same on all ranks.
    """
    of_group = _shared.setdefault(group, {})
    key = purpose, device.type
    if key not in of_group:
        of_group[key] = DeviceP2P(group, device, purpose)
    return of_group[key]


def end_device_transfers() -> None:
    """End all pending operations of the process groups' backends for devices, such as NCCL.

    A failure of another rank does not reach these backends, and a stream would wait for that rank.
    The backend "smdist" needs no such call: its engine is aborted on all ranks.
    """
    for p2p in [each for of_group in _shared.values() for each in of_group.values()]:
        p2p.abort()
    for group in list(dist.distributed_c10d._world.pg_map):
        for device in group._device_types:
            if is_accelerator(device) and backend_name(group, device) in COMMUNICATORS:
                group._get_backend(device).abort()
