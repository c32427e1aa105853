# SPDX-License-Identifier: Apache-2.0
"""All-reduce without a protocol, as a lower bound: compiles and calls bare.cc and bare_hosts.cc."""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.hosts import NETWORK

_SOURCES = [Path(__file__).with_name(name) for name in ("bare.cc", "bare_hosts.cc")]
_LIBRARY = Path(__file__).parents[2] / "build/benchmarks/bare.so"
# Limits of smdist on emulated hosts: bytes in flight to a rank, at least this much from each other
# host.
_ARRIVING_BYTES, _FOR_EACH = 224 << 10, 64 << 10
_KINDS = 2  # kinds of connections: for shards and for sums
_COMPILE = ["c++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-Wall", "-Werror"]


def build() -> None:
    """Compile the library of bare.cc and bare_hosts.cc. Call before any rank is started."""
    _LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*_COMPILE, "-o", _LIBRARY, *_SOURCES], check=True)


class BareSum:
    """All-reduce of float32 over this host's ranks, or over one rank on each of several hosts."""

    def __init__(self, size: int) -> None:
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.buffer = np.empty(size // 4, np.float32)
        is_alone = os.environ["MASTER_ADDR"] == "127.0.0.1"
        self._sum, self._handle = _opened(self.rank, self.ranks) if is_alone else _on_hosts()

    def __call__(self) -> None:
        data = self.buffer.ctypes.data_as(ctypes.c_void_p)
        self._sum(self._handle, data, ctypes.c_uint64(self.buffer.size))


@cache
def silent_group() -> None:
    """Create a torch process group whose collectives return at once and move no data."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())


@cache
def _opened(rank: int, ranks: int) -> tuple[Any, ctypes.c_void_p]:
    library = load()
    path = _path()
    handle = library.bare_open(bytes(path), ctypes.c_uint64(rank), ctypes.c_uint64(ranks))
    if not handle:
        raise OSError(f"{path} cannot be mapped")
    return library.bare_sum, ctypes.c_void_p(handle)


@cache
def _on_hosts() -> tuple[Any, ctypes.c_void_p]:
    return load().bare_sum_hosts, connected()


@cache
def load() -> ctypes.CDLL:
    """Load the library that build() has compiled."""
    library = ctypes.CDLL(str(_LIBRARY))
    library.bare_open.restype = library.bare_connect.restype = ctypes.c_void_p
    return library


def connected() -> ctypes.c_void_p:
    """Connect this rank to all others and return a handle; all hosts have equally many ranks."""
    seat, seats = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    host, hosts = (int(os.environ[name]) // seats for name in ("RANK", "WORLD_SIZE"))
    names = [f"{NETWORK}.{number + 1}".encode() for number in range(hosts)]
    flows = seats * (hosts - 1)
    usual = max(_ARRIVING_BYTES, _FOR_EACH * flows)
    arriving = int(os.environ.get("SMDIST_ARRIVING_BYTES", usual))
    place = (ctypes.c_uint64 * 4)(host, hosts, seat, seats)
    window = ctypes.c_uint64(arriving // flows // _KINDS)
    handle = load().bare_connect((ctypes.c_char_p * hosts)(*names), place, window)
    return ctypes.c_void_p(handle)


def leave() -> None:
    """Remove the file of the shared memory; the memory itself exists until all ranks have ended."""
    _path().unlink(missing_ok=True)


def _path() -> Path:
    return Path(f"/dev/shm/smdist-bare-{os.environ['MASTER_PORT']}")
