# SPDX-License-Identifier: Apache-2.0
"""Decision of a process group between two levels and staging, for tensors on GPUs.

In two levels, NCCL moves data among the GPUs of a host, and the engine moves it between hosts.
Otherwise tensors are staged: copied to the host and back. The ranks of a group decide in the first
collective that could take two levels, because a script may choose its GPU after
init_process_group(). Each describes itself to all others; so all of them find the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cache
from typing import Final, Protocol

import torch
from torch._C._distributed_c10d import Backend, PrefixStore, Store

from sagemaker_dist.errors import OptionError
from smdist.dataparallel.torch.host_communicators import BY_DEVICE, HostCommunicators

AUTO: Final = "auto"
STAGED: Final = "staged"
_MAX_REASON: Final = 300  # characters
# The two communicators of each host, and whether their streams have a high priority. The stream of
# "reduce" waits for the caller's work, so it may share no queue of the device with the others.
_COMMUNICATORS: Final = {"reduce": False, "gather": True}
_HINT: Final = (
    "Call torch.cuda.set_device(LOCAL_RANK) before the first collective, give every host as many"
    " ranks as every other one, at least two, or set gpu_collectives to auto or staged"
)

Exchange = Callable[[str], list[str]]
Decision = tuple[int, int, int, int, int, int, Backend, Backend]


class GroupNumbering(Protocol):
    """Engine, in which groups of ranks have numbers."""

    def add_group(self, group: int, members: list[int], /) -> None:
        """Create a communicator of the ranks `members`, with the number `group`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Facts of one rank that decide whether its group takes two levels.

    Attributes:
        host: Identity of the host.
        device: Identity of the GPU, equal for two ranks if and only if they use the same one.
        fault: Reason why this rank cannot take two levels; "" if it can.
    """

    host: str
    device: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLayout:
    """Place of a rank in a group with equal numbers of ranks on all hosts.

    Attributes:
        num_hosts: Number of hosts.
        local_size: Number of ranks of the group on each host.
        host: Number of this rank's host, from 0.
        local_rank: Number of this rank among those of its host, from 0.
    """

    num_hosts: int
    local_size: int
    host: int
    local_rank: int

    def host_members(self) -> list[int]:
        """Return the ranks of this rank's host."""
        first = self.host * self.local_size
        return list(range(first, first + self.local_size))

    def peers_between_hosts(self) -> list[int]:
        """Return the ranks with this local rank, one on each host."""
        return list(range(self.local_rank, self.num_hosts * self.local_size, self.local_size))


def reason_for_staging(ranks: Sequence[Description]) -> str | None:
    """Return why a group of these ranks is staged, or None if it can take two levels."""
    for number, rank in enumerate(ranks):
        if rank.fault:
            return f"rank {number} cannot use the GPUs of its host together: {rank.fault}"
    devices: dict[tuple[str, str], int] = {}
    for number, rank in enumerate(ranks):
        first = devices.setdefault((rank.host, rank.device), number)
        if first != number:
            return f"ranks {first} and {number} use the same GPU"
    return _uneven([rank.host for rank in ranks])


def _uneven(hosts: Sequence[str]) -> str | None:
    order = list(dict.fromkeys(hosts))
    counts = sorted({hosts.count(host) for host in order})
    if counts == [1]:
        return "each host has one rank of the group"
    if len(counts) > 1:
        return f"the hosts have {counts[0]} to {counts[-1]} ranks of the group"
    if hosts != [host for host in order for _ in range(counts[0])]:
        return "the ranks of each host do not follow each other"
    return None


def layout_of(rank: int, hosts: Sequence[str]) -> HostLayout:
    """Return the place of `rank`. `hosts` has the host of each rank; all have as many ranks."""
    num_hosts = len(set(hosts))
    local_size = len(hosts) // num_hosts
    host, local_rank = divmod(rank, local_size)
    return HostLayout(num_hosts=num_hosts, local_size=local_size, host=host, local_rank=local_rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelDecider:
    """Function by which a rank of a process group decides together with the others.

    Attributes:
        option: "auto", "nccl" or "staged".
        is_world: True for the default group, which must take two levels if `option` is "nccl".
        engine: The engine of this process.
        group_name: Name of the group, the same on all of its ranks.
        members: Ranks of the group in the engine.
        rank: This rank's number in the group.
        host: Identity of this rank's host.
        store: Store of the group.
        timeout: Longest duration of a collective.
    """

    option: str
    is_world: bool
    engine: GroupNumbering
    group_name: str
    members: Sequence[int]
    rank: int
    host: str
    store: Store
    timeout: timedelta

    def __call__(self, device_name: str, exchange: Exchange) -> Decision | None:
        """Return what the compiled adapter needs for two levels, or None if tensors are staged.

        Rank 0 of the job prints which it is, and why.

        Args:
            device_name: Name of this rank's device, such as "cuda:0".
            exchange: Function that passes a text to all ranks of the group, and returns theirs.

        Raises:
            OptionError: `option` is "nccl", and the default group cannot take two levels. All
                ranks raise it.
        """
        device = torch.device(device_name)
        means = BY_DEVICE.get(device.type)
        mine = describe(self.host, device, means)
        ranks = [Description(**json.loads(text)) for text in exchange(json.dumps(asdict(mine)))]
        reason = reason_for_staging(ranks)
        if reason is None and means is not None:
            hosts = [rank.host for rank in ranks]
            decision, reason = self._connected(means, device, layout_of(self.rank, hosts), exchange)
            if decision is not None:
                self._report(f"{means.name} within {len(set(hosts))} hosts, smdist between them")
                return decision
        if self.option != AUTO and self.is_world:
            raise OptionError(
                f"gpu_collectives is {self.option!r}",
                reason or f"nothing connects the {device.type} devices of a host",
                _HINT,
                about="SMDIST_GPU_COLLECTIVES",
                kind="unavailable",
            )
        self._report(f"staged through the host, because {reason}")
        return None

    def _connected(
        self,
        means: HostCommunicators,
        device: torch.device,
        layout: HostLayout,
        exchange: Exchange,
    ) -> tuple[Decision | None, str | None]:
        """Make the communicators of this rank's host and in the engine.

        Return None and the reason if a rank of the group could not make its own.
        """
        made: list[Backend] = []
        rank, size = layout.local_rank, layout.local_size
        for name, has_priority in _COMMUNICATORS.items():
            store = PrefixStore(f"smdist/{name}/{layout.host}", self.store)
            fault = ""
            try:
                made.append(means.create(store, rank, size, self.timeout, device, has_priority))
            except Exception as error:  # the other ranks must learn of it, and not wait
                fault = f"{type(error).__name__}: {error}"[:_MAX_REASON]
            for number, text in enumerate(exchange(fault)):
                if text:
                    for backend in made:
                        backend.abort()
                    return None, f"{means.name} did not start on rank {number}: {text}"
        within = self._numbered(f"host/{layout.host}", layout.host_members())
        between = self._numbered(f"between/{layout.local_rank}", layout.peers_between_hosts())
        return (
            layout.num_hosts,
            layout.host,
            layout.local_size,
            layout.local_rank,
            within,
            between,
            made[0],
            made[1],
        ), None

    def _numbered(self, name: str, ranks: Sequence[int]) -> int:
        number = group_number(f"{self.group_name}/{name}")
        self.engine.add_group(number, [self.members[rank] for rank in ranks])
        return number

    def _report(self, text: str) -> None:
        if self.members[self.rank] == 0:
            _print_once(f"smdist: collectives on GPU tensors: {text}\n")


def group_number(name: str) -> int:
    """Return a number for a group of the engine, made from its name.

    The engine raises an error if two groups get the same number.
    """
    return zlib.crc32(name.encode()) or 1


def describe(host: str, device: torch.device, means: HostCommunicators | None) -> Description:
    """Return the description of this rank.

    This function raises no error: the other ranks wait for the description.

    Args:
        host: Identity of this rank's host.
        device: Device of this rank's tensors.
        means: Communicators among such devices; None if there are none.
    """
    try:
        fault = "the device is unknown" if means is None else means.fault(device)
        identity = "" if means is None or fault else means.identity(device)
    except Exception as error:  # a fault of any driver becomes part of the decision
        fault, identity = f"{type(error).__name__}: {error}", ""
    digest = hashlib.sha256(host.encode()).hexdigest()
    return Description(host=digest, device=identity, fault=fault[:_MAX_REASON])


@cache
def _print_once(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()
