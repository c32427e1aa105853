# SPDX-License-Identifier: Apache-2.0
"""Identity of the host that a rank runs on, so that ranks of one host reduce over shared memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from smdist.config import RankConfig

_PAUSE = 50


def host_identity(config: RankConfig) -> str:
    """Return a text that two ranks share if and only if they are on one host.

    SMDIST_HOST_ID wins, set by the launcher or the user: emulated hosts on one machine count
    as hosts. Otherwise a host is one running kernel with one network namespace and one
    shared-memory namespace, so two containers are two hosts.
    """
    if config.host_id:
        return f"named {config.host_id}"
    return "/".join([_boot(), _namespace("net"), _namespace("ipc")])


def machine_identity() -> str:
    """Return the identity of the running kernel, regardless of SMDIST_HOST_ID."""
    return _boot()


def pause_microseconds(ranks: int) -> int:
    """Return how long an idle engine spins before it sleeps, in microseconds.

    The time is about that of a wake-up. It is 0 if there are fewer processors than ranks,
    because spinning would take processor time from other ranks.
    """
    return _PAUSE if ranks <= len(os.sched_getaffinity(0)) else 0


def numbered(identities: list[str]) -> list[int]:
    """Return the host number of each rank: equal identities get equal numbers."""
    order = list(dict.fromkeys(identities))
    return [order.index(identity) for identity in identities]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # a container may hide this file
        return socket.gethostname()


def _namespace(kind: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{kind}").stat().st_ino)
    except OSError:
        return socket.gethostname()
