# SPDX-License-Identifier: Apache-2.0
"""Which host this rank runs on, so that ranks of one host combine before the wire."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from smdist.config import RankConfig

_PAUSE = 50


def host_identity(config: RankConfig) -> str:
    """A text that ranks share if and only if they are on one host.

    What the launcher or the user says (SMDIST_HOST_ID) counts; emulated hosts on
    one machine are hosts by that. Else one host is one running kernel with one
    network and one shared-memory namespace: two containers are two hosts.
    """
    if config.host_id:
        return f"named {config.host_id}"
    return "/".join([_boot(), _namespace("net"), _namespace("ipc")])


def machine_identity() -> str:
    """The kernel that this rank runs on, whatever host it is told to be."""
    return _boot()


def pause_microseconds(ranks: int) -> int:
    """How long an idle engine looks for news before it sleeps; waking up takes about as long.

    Not at all where so many ranks have fewer processors: it would take them from others.
    """
    return _PAUSE if ranks <= len(os.sched_getaffinity(0)) else 0


def numbered(identities: list[str]) -> list[int]:
    """By rank: the same number for the same host."""
    order = list(dict.fromkeys(identities))
    return [order.index(identity) for identity in identities]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # hidden by the container
        return socket.gethostname()


def _namespace(kind: str) -> str:
    try:
        return str(Path(f"/proc/self/ns/{kind}").stat().st_ino)
    except OSError:
        return socket.gethostname()
