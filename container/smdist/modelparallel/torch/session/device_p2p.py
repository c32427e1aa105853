# SPDX-License-Identifier: Apache-2.0
"""Sends and receives of tensors on an accelerator, from device to device.

The backend that the process group has for the device decides how they travel:

    smdist        staged through pinned memory by the engine; messages have tags
    NCCL          by NCCL, which ignores tags and runs the messages of a communicator one after the
                  other. So each direction of each pair of ranks has a communicator of its own, and
                  a receiver has to receive in the order in which the sender sends.
    any other     not from device to device; the caller copies tensors to the CPU

A communicator is made when the first message of its direction is sent, by its two ranks alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from smdist.modelparallel.torch.accelerator import is_accelerator

TAGGED: Final = frozenset({"smdist", "smddp"})  # backends that match messages by their tags
CommunicatorMaker = Callable[[Store, int, int, timedelta], Any]


def backend_name(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the name of a group's backend for a type of device, in lower case; "" if it has none.

    Args:
        group: Process group; it may have one backend for the CPU and another for a GPU.
        device: Device of tensors; only its type counts.
    """
    with suppress(RuntimeError):  # no backend for this type
        return str(group._get_backend(torch.device(device.type)).name()).lower()
    return ""


def _nccl(store: Store, rank: int, size: int, timeout: timedelta) -> Any:
    """Return a communicator of NCCL: an object of torch's own ProcessGroupNCCL."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    return dist.ProcessGroupNCCL(store, rank, size, options)


# functions that make the communicator of one direction, by the name of the backend
COMMUNICATORS: Final[dict[str, CommunicatorMaker]] = {"nccl": _nccl}


class DeviceP2P:
    """Sends and receives of one rank in a process group, for tensors of its device.

    Args:
        group: Process group; `peer` arguments are ranks in this group.
        device: Device of this rank's tensors.
        purpose: Name that is different for each object with the same group and the same on all
            ranks, such as "stages".

    Attributes:
        is_direct: True if the backend sends from device to device.
        is_ordered: True if the backend ignores tags, so that the messages from one rank to another
            have to be received in the order in which they are sent.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, purpose: str) -> None:
        self._reference, self._purpose = ref(group), purpose
        name = backend_name(group, device)
        self._make = COMMUNICATORS.get(name)
        self.is_ordered = self._make is not None
        self.is_direct = self.is_ordered or name in TAGGED
        self._communicators: dict[tuple[int, int], Any] = {}  # by sender and receiver

    @property
    def _group(self) -> dist.ProcessGroup:
        group = self._reference()
        assert group is not None
        return group

    def isend(self, tensor: Tensor, peer: int, tag: int) -> Any:
        """Start to send a contiguous tensor; return the handle of the transfer.

        Args:
            tensor: Tensor on this rank's device, or on the CPU if the backend is not direct. The
                transfer waits for the current stream.
            peer: Receiving rank.
            tag: Number of the message, which backends without tags ignore.
        """
        if not self.is_ordered:
            return dist.isend(tensor, group=self._group, group_dst=peer, tag=tag)
        return self._communicator(self._group.rank(), peer).send([tensor], 1, 0)

    def irecv(self, tensor: Tensor, peer: int, tag: int) -> Any:
        """Start to receive into a contiguous tensor; return the handle of the transfer.

        Args:
            tensor: Tensor on this rank's device, or on the CPU if the backend is not direct. The
                transfer waits for the current stream.
            peer: Sending rank.
            tag: Number of the message, which backends without tags ignore.
        """
        if not self.is_ordered:
            return dist.irecv(tensor, group=self._group, group_src=peer, tag=tag)
        return self._communicator(peer, self._group.rank()).recv([tensor], 0, 0)

    def abort(self) -> None:
        """End all transfers of this rank's own communicators, so that no stream waits for them."""
        for communicator in self._communicators.values():
            communicator.abort()

    def _communicator(self, source: int, target: int) -> Any:
        """Return the communicator of one direction; its rank 0 sends and its rank 1 receives."""
        key = source, target
        if key not in self._communicators:
            assert self._make is not None
            name = f"smdist/{self._purpose}/{source}-{target}/"
            of_group = dist.distributed_c10d._get_process_group_store(self._group)
            store = PrefixStore(name, of_group)
            rank = 0 if self._group.rank() == source else 1
            self._communicators[key] = self._make(store, rank, 2, _timeout_of(self._group))
        return self._communicators[key]


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


def _timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Return the timeout of a group's operations; torch's default if it is not known."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        found = getattr(options, "_timeout", None)
        if found is not None:
            return timedelta(seconds=found.total_seconds())
    return dist.constants.default_pg_timeout
