# SPDX-License-Identifier: Apache-2.0
"""Communicators of two ranks each, such as NCCL's, for messages from device to device.

Each direction of a pair of ranks has a communicator of its own, because NCCL runs the messages of a
communicator one after the other. It ignores the tags of messages: a receiver has to receive in the
order in which the sender sends.

A rank that makes a communicator waits until the other rank makes it, too. A receive is posted long
before its message is sent, so a rank that connected at its first receive could wait for a rank that
waits for it. Therefore all ranks connect before the first message, in the same order. If one rank
fails within NCCL while it connects, the other one may wait for NCCL's own timeout.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final
from weakref import ref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from smdist.config import read_rank_config, set_default
from smdist.dataparallel.rendezvous.engine_interface import EngineFault
from smdist.dataparallel.rendezvous.engine_shutdown import last_fault
from smdist.dataparallel.rendezvous.host_identity import host_identity
from smdist.dataparallel.torch.host_communicators import BY_DEVICE, connected_nccl
from smdist.dataparallel.torch.two_levels import STAGED, Description, describe

Direction = tuple[int, int]  # sending rank and receiving rank
CommunicatorMaker = Callable[[Store, int, int, timedelta, torch.device, bool], Any]
_LOOK_SECONDS: Final = 0.2  # between two looks for a fault of the engine
_PAUSE: Final = 0.001  # seconds between two looks at the store
# Variable that turns off a warning of NCCL: messages of a communicator that is connected before its
# first message are sent one after the other. That is wanted: it has messages of one direction.
_NCCL_WARNING: Final = "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING"


# functions that make and connect a communicator, by the name of the group's backend
COMMUNICATORS: Final[dict[str, CommunicatorMaker]] = {"nccl": connected_nccl}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """Ways from this rank's device to those of other ranks.

    Attributes:
        make: Makes and connects the communicator of a direction. Its arguments are a store of the
            two ranks, 0 for the sender or 1 for the receiver, 2, the timeout of operations, this
            rank's device, and whether the communicator's stream has a high priority.
        own: Description of this rank, which decides whether a communicator connects it to another
            rank; None if communicators connect all ranks.
    """

    make: CommunicatorMaker
    own: Description | None = None

    @property
    def is_optional(self) -> bool:
        """True if messages can take another way where no communicator could be made."""
        return self.own is not None


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
        return Connector(make=COMMUNICATORS[backend])
    means, config = BY_DEVICE.get(device.type), read_rank_config()
    if not is_tagged or means is None or config.gpu_collectives == STAGED:
        return None
    return Connector(make=means.create, own=describe(host_identity(config), device, means))


def _share_host(one: Description, other: Description) -> bool:
    """Return whether two ranks have different GPUs of one host, and both can connect them."""
    has_fault = one.fault or other.fault
    return not has_fault and one.host == other.host and one.device != other.device


class PairCommunicators:
    """Communicators of one rank of a group, by direction.

    A failure of another rank does not reach the communicators. So a thread looks for a fault of the
    engine, and ends their transfers: this rank may be waiting for its device at the time.

    Args:
        connector: How ranks are connected; None if none are.
        device: Device of this rank's tensors.
        purpose: Name that is different for each object with the same group, and the same on all
            ranks.
    """

    def __init__(self, connector: Connector | None, device: torch.device, purpose: str) -> None:
        self._connector, self._device, self._purpose = connector, device, purpose
        self._made: dict[Direction, Any] = {}  # None: this direction has another way
        self._watch: threading.Thread | None = None

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
            DistBackendError: Some communicators could not be made, and messages have no other way,
                or the engine has failed on the way.
        """
        rank, connector = group.rank(), self._connector
        mine = sorted(each for each in {*directions} - self._made.keys() if rank in each)
        if connector is None or not mine:
            return
        set_default(_NCCL_WARNING, "false")
        faults: list[str] = []
        for direction in mine:  # each one, also after a fault: the other rank waits
            made, fault = _Ends(group, direction, self._device, self._purpose).connect(connector)
            if fault and not connector.is_optional:
                faults.append(fault)
            else:
                self._made[direction] = made
        if faults:
            raise dist.DistBackendError("; ".join(faults))
        if len(self) and self._watch is None:
            self._watch = threading.Thread(
                target=_abort_after_faults, args=(ref(self),), name="smdist-pairs", daemon=True
            )
            self._watch.start()

    def abort(self) -> None:
        """End all transfers of the communicators, so that no stream waits for them."""
        for communicator in list(self._made.values()):
            if communicator is not None:
                communicator.abort()


def _abort_after_faults(pairs: ref[PairCommunicators]) -> None:
    """Wait until the engine has failed, then end the transfers of communicators.

    The wait also ends when the communicators are gone.
    """
    while True:
        time.sleep(_LOOK_SECONDS)
        found = pairs()
        if found is None:
            return
        if _engine_failure() is not None:
            found.abort()
            return
        del found


def _engine_failure() -> EngineFault | None:
    """Return the fault that has ended the engine; None if it goes on.

    Ranks that called different things ("usage") have ended their operation and not the engine.
    """
    fault = last_fault()
    return None if fault is None or fault.kind == "usage" else fault


class _Ends:
    """Two ranks of a group, at the ends of one direction, while they are connected.

    Args:
        group: Process group in which the numbers of ranks count.
        direction: Sending rank and receiving rank, one of which is this rank.
        device: Device of this rank's tensors.
        purpose: Name of the purpose, the same on both ranks.
    """

    def __init__(
        self, group: dist.ProcessGroup, direction: Direction, device: torch.device, purpose: str
    ) -> None:
        self._direction, self._device = direction, device
        self._end = int(group.rank() == direction[1])  # 0: this rank sends
        self._timeout = timeout_of(group)
        of_group = dist.distributed_c10d._get_process_group_store(group)
        store = PrefixStore(f"smdist/{purpose}/{direction[0]}-{direction[1]}", of_group)
        # the store may be older than this session, with what an earlier one has left
        generation = store.add(f"generation/{self._end}", 1)
        self._store = PrefixStore(str(generation), store)

    def connect(self, connector: Connector) -> tuple[Any | None, str]:
        """Make the communicator, at the same time as the other rank does.

        Returns:
            The communicator, or None if the two ranks have none, and the reason if they should have
            one; "" if they should not.

        Raises:
            DistBackendError: The engine has failed, or the other rank has not come in time.
        """
        if connector.own is not None:
            texts = self._exchange("rank", json.dumps(asdict(connector.own)))
            if not _share_host(*(Description(**json.loads(text)) for text in texts)):
                return None, ""
        made, fault = None, ""
        try:
            made = connector.make(
                PrefixStore("made", self._store), self._end, 2, self._timeout, self._device,
                self._end == 1,  # a receive waits on the device, and may hold up no other kernel
            )  # fmt: skip
        except Exception as error:  # the other rank has to learn of it
            fault = f"{type(error).__name__}: {error}"
        faults = self._exchange("fault", fault)
        if not any(faults):
            return made, ""
        if made is not None:
            made.abort()
        source, target = self._direction
        rank, fault = next((r, f) for r, f in zip(self._direction, faults, strict=True) if f)
        text = f"ranks {source} and {target} of a pipeline are not connected: rank {rank} had"
        return None, f"{text} {fault}"

    def _exchange(self, name: str, text: str) -> list[str]:
        """Return the texts of both ranks, the sender's first.

        Args:
            name: Name of the exchange.
            text: Text of this rank.
        """
        self._store.set(f"{name}/{self._end}", text)
        key = f"{name}/{1 - self._end}"
        until = time.monotonic() + self._timeout.total_seconds()
        while not self._store.check([key]):
            fault = _engine_failure()
            if fault is not None:
                raise dist.DistBackendError(fault.text)
            if time.monotonic() > until:
                other = self._direction[1 - self._end]
                raise dist.DistBackendError(
                    f"rank {other} of a pipeline has not come to connect to this rank in"
                    f" {self._timeout.total_seconds():g} s"
                )
            time.sleep(_PAUSE)
        texts = [text, self._store.get(key).decode()]
        return texts if self._end == 0 else texts[::-1]


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """Return the timeout of a group's operations; torch's default if it is not known."""
    for device in group._device_types:
        options = getattr(group._get_backend(device), "options", None)
        found = getattr(options, "_timeout", None)
        if found is not None:
            return timedelta(seconds=found.total_seconds())
    return dist.constants.default_pg_timeout
