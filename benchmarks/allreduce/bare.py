# SPDX-License-Identifier: Apache-2.0
"""Who does nothing but move and add; see bare.cc and bare_hosts.cc, which this builds and calls."""

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
# What smdist allows on emulated hosts: so much, or so much for each connection.
_ARRIVING_BYTES, _FOR_EACH = 224 << 10, 64 << 10
_COMPILE = ["c++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-Wall", "-Werror"]


def build() -> None:
    """Make the library; before any rank is started."""
    _LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*_COMPILE, "-o", _LIBRARY, *_SOURCES], check=True)


class BareSum:
    """Sums of float32 over all ranks of this host, or one on each of several."""

    def __init__(self, size: int) -> None:
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.buffer = np.empty(size // 4, np.float32)
        is_alone = os.environ["MASTER_ADDR"] == "127.0.0.1"
        self._sum, self._handle = (_opened if is_alone else _connected)(self.rank, self.ranks)

    def __call__(self) -> None:
        data = self.buffer.ctypes.data_as(ctypes.c_void_p)
        self._sum(self._handle, data, ctypes.c_uint64(self.buffer.size))


@cache
def _opened(rank: int, ranks: int) -> tuple[Any, ctypes.c_void_p]:
    library = ctypes.CDLL(str(_LIBRARY))
    library.bare_open.restype = ctypes.c_void_p
    path = _path()
    handle = library.bare_open(bytes(path), ctypes.c_uint64(rank), ctypes.c_uint64(ranks))
    if not handle:
        raise OSError(f"{path} cannot be mapped")
    return library.bare_sum, ctypes.c_void_p(handle)


@cache
def _connected(rank: int, ranks: int) -> tuple[Any, ctypes.c_void_p]:
    library = ctypes.CDLL(str(_LIBRARY))
    library.bare_connect.restype = ctypes.c_void_p
    hosts = [f"{NETWORK}.{number + 1}".encode() for number in range(ranks)]
    addresses = (ctypes.c_char_p * ranks)(*hosts)
    usual = max(_ARRIVING_BYTES, _FOR_EACH * (ranks - 1))
    arriving = int(os.environ.get("SMDIST_ARRIVING_BYTES", usual))
    numbers = (ctypes.c_uint64(number) for number in (rank, ranks, arriving))
    handle = library.bare_connect(addresses, *numbers)
    return library.bare_sum_hosts, ctypes.c_void_p(handle)


def leave() -> None:
    """Remove the file; its memory lasts until all ranks have ended."""
    _path().unlink(missing_ok=True)


def _path() -> Path:
    return Path(f"/dev/shm/smdist-bare-{os.environ['MASTER_PORT']}")
