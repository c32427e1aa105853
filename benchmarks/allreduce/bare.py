# SPDX-License-Identifier: Apache-2.0
"""The contender that does nothing but copy and add; see bare.cc, which this builds and calls."""

from __future__ import annotations

import ctypes
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np

_SOURCE = Path(__file__).with_name("bare.cc")
_LIBRARY = Path(__file__).parents[2] / "build/benchmarks/bare.so"
_COMPILE = ["c++", "-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-Wall", "-Werror"]


def build() -> None:
    """Make the library; before any rank is started."""
    _LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*_COMPILE, "-o", _LIBRARY, _SOURCE], check=True)


class BareSum:
    """Sums of float32 over all ranks of this host."""

    def __init__(self, size: int) -> None:
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.buffer = np.empty(size // 4, np.float32)
        self._library, self._handle = _opened(self.rank, self.ranks)

    def __call__(self) -> None:
        data = self.buffer.ctypes.data_as(ctypes.c_void_p)
        self._library.bare_sum(self._handle, data, ctypes.c_uint64(self.buffer.size))


@cache
def _opened(rank: int, ranks: int) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    library = ctypes.CDLL(str(_LIBRARY))
    library.bare_open.restype = ctypes.c_void_p
    path = _path()
    handle = library.bare_open(bytes(path), ctypes.c_uint64(rank), ctypes.c_uint64(ranks))
    if not handle:
        raise OSError(f"{path} cannot be mapped")
    return library, ctypes.c_void_p(handle)


def leave() -> None:
    """Remove the file; its memory lasts until all ranks have ended."""
    _path().unlink(missing_ok=True)


def _path() -> Path:
    return Path(f"/dev/shm/smdist-bare-{os.environ['MASTER_PORT']}")
