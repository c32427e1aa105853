# SPDX-License-Identifier: Apache-2.0
"""Communicators of two ranks each, such as NCCL's, for messages from device to device.

Each direction of a pair of ranks has a communicator of its own, because NCCL runs the messages of a
communicator one after the other. It ignores the tags of messages: a receiver has to receive in the
order in which the sender sends.

A rank that makes a communicator waits until the other rank makes it, too. A receive is posted long
before its message is sent, so a rank that connected at its first receive could wait for a rank that
waits for it. Therefore all ranks connect before the first message, in the same order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore, Store

from smdist.config import read_rank_config
from smdist.dataparallel.rendezvous.host_identity import host_identity
from smdist.dataparallel.torch.host_communicators import BY_DEVICE
from smdist.dataparallel.torch.two_levels import STAGED, Description, describe

Direction = tuple[int, int]  # sending rank and receiving rank
CommunicatorMaker = Callable[[Store, int, int, timedelta, torch.device], Any]


def _nccl(store: Store, rank: int, size: int, timeout: timedelta, device: torch.device) -> Backend:
    """Return a communicator of NCCL: a connected object of torch's own ProcessGroupNCCL."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    communicator = dist.ProcessGroupNCCL(store, rank, size, options)
    communicator.eager_connect_single_device(device)
    return communicator


# functions that make and connect a communicator, by the name of the group's backend
COMMUNICATORS: Final[dict[str, CommunicatorMaker]] = {"nccl": _nccl}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """Ways from this rank's device to those of other ranks.

    Attributes:
        make: Makes and connects the communicator of a direction. Its arguments are a store of the
            two ranks, 0 for the sender or 1 for the receiver, 2, the timeout of operations, and
            this rank's device.
        reaches: Returns whether a communicator connects this rank and another one, from the
            descriptions of both.
        is_optional: True if messages can take another way where no communicator could be made.
    """

    make: CommunicatorMaker
    reaches: Callable[[Description, Description], bool]
    is_optional: bool


def connector(backend: str, is_tagged: bool, device: torch.device) -> Connector | None:
    """Return how ranks on devices are connected in pairs, or None if they are not.

    Args:
        backend: Name of the group's backend for the device, in lower case.
        is_tagged: True if this backend, smdist's, can send messages by itself. Then ranks of one
            host are connected, each of which has a GPU of its own, as in collectives
            (`gpu_collectives`), and messages between hosts are staged.
        device: Device of this rank's tensors.
    """
    if backend in COMMUNICATORS:
        return Connector(make=COMMUNICATORS[backend], reaches=lambda *_: True, is_optional=False)
    means = BY_DEVICE.get(device.type)
    if not is_tagged or means is None or read_rank_config().gpu_collectives == STAGED:
        return None

    def make(
        store: Store, rank: int, size: int, timeout: timedelta, device: torch.device
    ) -> Backend:
        return means.create(store, rank, size, timeout, device, False)

    return Connector(make=make, reaches=_share_host, is_optional=True)


def _share_host(one: Description, other: Description) -> bool:
    """Return whether two ranks have different GPUs of one host, and both can connect them."""
    has_fault = one.fault or other.fault
    return not has_fault and one.host == other.host and one.device != other.device


class PairCommunicators:
    """Communicators of one rank of a group, by direction.

    Args:
        connector: How ranks are connected; None if none are.
        device: Device of this rank's tensors.
        purpose: Name that is different for each object with the same group, and the same on all
            ranks.
    """

    def __init__(self, connector: Connector | None, device: torch.device, purpose: str) -> None:
        self._connector, self._device, self._purpose = connector, device, purpose
        self._made: dict[Direction, Any] = {}  # None: this direction has another way

    def __len__(self) -> int:
        """Return the number of communicators that this rank has."""
        return sum(each is not None for each in self._made.values())

    def find(self, source: int, target: int) -> Any | None:
        """Return the communicator of a direction; its rank 0 sends, and its rank 1 receives.

        The result is None if the messages of this direction take another way.
        """
        return self._made.get((source, target))

    def connect(self, group: dist.ProcessGroup, directions: Iterable[Direction]) -> None:
        """Connect this rank with each rank to which it sends or from which it receives.

        Args:
            group: Process group in which the numbers of ranks count. All its ranks call this
                method with the same directions.
            directions: Directions in which messages will be sent; known ones have no effect.

        Raises:
            DistBackendError: A communicator could not be made, and messages have no other way.
        """
        rank, connector = group.rank(), self._connector
        mine = sorted(each for each in {*directions} - self._made.keys() if rank in each)
        if connector is None or not mine:
            return
        store = PrefixStore(
            f"smdist/{self._purpose}", dist.distributed_c10d._get_process_group_store(group)
        )
        own = self._described(store, rank)
        for source, target in mine:
            other = target if rank == source else source
            is_reached = connector.reaches(own, _read(store, other))
            self._made[source, target] = (
                self._connected(connector, group, store, (source, target)) if is_reached else None
            )

    def abort(self) -> None:
        """End all transfers of the communicators, so that no stream waits for them."""
        for communicator in self._made.values():
            if communicator is not None:
                communicator.abort()

    def _described(self, store: Store, rank: int) -> Description:
        """Return the description of this rank, and publish it for the other ranks."""
        device = self._device
        own = describe(host_identity(read_rank_config()), device, BY_DEVICE.get(device.type))
        store.set(f"rank/{rank}", json.dumps(asdict(own)))
        return own

    def _connected(
        self,
        connector: Connector,
        group: dist.ProcessGroup,
        store: Store,
        direction: Direction,
    ) -> Any | None:
        """Make the communicator of a direction, at the same time as the other rank does.

        Return None if one of the two could not, and messages have another way.
        """
        source, target = direction
        end, name = int(group.rank() == target), f"{source}-{target}"
        made, fault = None, ""
        try:
            made = connector.make(PrefixStore(name, store), end, 2, timeout_of(group), self._device)
        except Exception as error:  # the other rank must learn of it, and not wait
            fault = f"{type(error).__name__}: {error}"
        store.set(f"{name}/fault/{end}", fault)
        faults: Mapping[int, str] = {
            rank: store.get(f"{name}/fault/{number}").decode()
            for number, rank in enumerate(direction)
        }
        if not any(faults.values()):
            return made
        if made is not None:
            made.abort()
        if connector.is_optional:
            return None
        rank, fault = next((rank, fault) for rank, fault in faults.items() if fault)
        raise dist.DistBackendError(
            f"ranks {source} and {target} of a pipeline are not connected: rank {rank} had {fault}"
        )


def _read(store: Store, rank: int) -> Description:
    """Return the description of a rank, and wait until it has published it."""
    return Description(**json.loads(store.get(f"rank/{rank}")))


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Return the timeout of a group's operations; torch's default if it is not known."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        found = getattr(options, "_timeout", None)
        if found is not None:
            return timedelta(seconds=found.total_seconds())
    return dist.constants.default_pg_timeout
