# SPDX-License-Identifier: Apache-2.0
"""Identity of a rank's host; ranks with equal identities reduce over shared memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from smdist.config import RankConfig

_PAUSE = 50  # microseconds


def host_identity(config: RankConfig) -> str:
    """Return a text that is equal for two ranks if and only if they are on the same host.

    It is SMDIST_HOST_ID if the launcher or the user has set it, so that one machine can emulate
    several hosts. Otherwise it is made of the running kernel, its network namespace and its
    shared-memory namespace, so two containers are two hosts.
    """
    if config.host_id:
        return f"named {config.host_id}"
    return "/".join([_boot(), _namespace("net"), _namespace("ipc")])


def machine_identity() -> str:
    """Return a text that is equal for all processes on the same running kernel."""
    return _boot()


def pause_microseconds(ranks: int) -> int:
    """Return the microseconds for which an idle engine spins before it sleeps.

    `ranks` is the number of ranks on this machine. The engine spins about as long as the kernel
    needs to wake a thread. The result is 0 if there are fewer CPUs than ranks, because spinning
    would take CPU time from other ranks.
    """
    return _PAUSE if ranks <= len(os.sched_getaffinity(0)) else 0


def host_numbers(identities: list[str]) -> list[int]:
    """Return the host number of each rank, counted from 0: equal identities get equal numbers."""
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
