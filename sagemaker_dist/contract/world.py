# SPDX-License-Identifier: Apache-2.0
"""Computation of the host and the local rank of every rank.

Ranks are numbered host by host: with P ranks on each host, rank r has local rank r mod P on host
r div P. Hosts are in numeric order (algo-2 before algo-10).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from sagemaker_dist.errors import require


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Hosts of a job, and the ranks on them.

    Attributes:
        hosts: Host names, passed in any order and stored in numeric order.
        processes_per_host: Number of ranks on each host.

    Raises:
        OptionError: There is no host, a host is listed twice, or a host has no rank.
    """

    hosts: tuple[str, ...]
    processes_per_host: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", sort_hosts(self.hosts))
        require(
            len(set(self.hosts)) == len(self.hosts) > 0,
            what=f"hosts are {self.hosts!r}",
            why="a job has at least one host, and each host is listed once",
            hint="List every host once",
        )
        require(
            self.processes_per_host >= 1,
            what=f"processes_per_host is {self.processes_per_host!r}",
            why="every host starts at least one rank",
            hint="Pass an integer of at least 1",
        )

    @property
    def size(self) -> int:
        """Return the number of ranks on all hosts together."""
        return len(self.hosts) * self.processes_per_host

    def rank(self, host: str, local_rank: int) -> int:
        """Return the rank, over all hosts, of the process with `local_rank` on `host`."""
        return self.hosts.index(host) * self.processes_per_host + local_rank

    def host(self, rank: int) -> str:
        """Return the name of the host on which a rank runs."""
        return self.hosts[rank // self.processes_per_host]

    def local_rank(self, rank: int) -> int:
        """Return the local rank, counted from 0 on each host, of the process with rank `rank`."""
        return rank % self.processes_per_host

    def label(self, host: str) -> str:
        """Return the name of `host` for messages.

        An IP address is replaced by "algo-N" for the N-th host.
        """
        return f"algo-{self.hosts.index(host) + 1}" if _is_address(host) else host


def sort_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    """Return host names sorted by the numbers in them: algo-2 before algo-10."""
    return tuple(sorted(hosts, key=_numeric_key))


def _numeric_key(host: str) -> list[tuple[bool, int, str]]:
    parts = re.split(r"(\d+)", host)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
