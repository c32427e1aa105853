# SPDX-License-Identifier: Apache-2.0
"""Process of one rank, which measures all-reduces and messages of this project's engine.

Run as `python -m smdist.modelparallel.calibrate.rank_process STORE RANK SIZE SECONDS`. Rank 0
prints one JSON object a line. The process ends when its standard input ends, so that none survives
the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from threading import Thread
from time import perf_counter
from typing import Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

import smdist.dataparallel.torch  # noqa: F401  registers the backend

_KIB, _MIB = 1 << 10, 1 << 20
_REDUCED: Final = (_KIB, 16 * _KIB, 256 * _KIB, _MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB)
_SENT: Final = (_KIB, 16 * _KIB, 256 * _KIB, _MIB, 4 * _MIB, 16 * _MIB)
_LEAST, _MOST = 3, 100


def main(store: str, rank: int, size: int, seconds: float) -> None:
    """Measure all sizes with the other ranks.

    Args:
        store: Path of the file by which the ranks meet.
        rank: Number of this rank.
        size: Number of ranks.
        seconds: Time for all sizes together.
    """
    Thread(target=_end_with_input, daemon=True).start()
    torch.set_num_threads(1)
    dist.init_process_group("smdist", store=FileStore(store, size), rank=rank, world_size=size)
    share = seconds / (len(_REDUCED) + len(_SENT))
    for num_bytes in _REDUCED:
        value = torch.ones(num_bytes // 4)
        took = _slowest(partial(dist.all_reduce, value), share)
        _print(rank, "all_reduce", num_ranks=size, num_bytes=num_bytes, seconds=took)
    for num_bytes in _SENT:
        value = torch.ones(num_bytes // 4)
        took = _slowest(partial(_there_and_back, value, rank), share) / 2
        _print(rank, "messages", num_bytes=num_bytes, seconds=took)
    dist.destroy_process_group()


def _there_and_back(value: torch.Tensor, rank: int) -> None:
    """Send a value from rank 0 to rank 1 and back; other ranks do nothing."""
    if rank == 0:
        dist.send(value, 1)
        dist.recv(value, 1)
    elif rank == 1:
        dist.recv(value, 0)
        dist.send(value, 0)


def _slowest(call: Callable[[], object], seconds: float) -> float:
    """Return the median seconds of a call that all ranks make, on the slowest rank.

    All ranks make as many calls: as many as fit into `seconds`, at least 3 and at most 100.
    """
    call()
    first = _largest(_timed(call))
    count = max(_LEAST, min(_MOST, int(seconds / max(first, 1e-6))))
    return _largest(median(_timed(call) for _ in range(count)))


def _timed(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin


def _largest(number: float) -> float:
    """Return the largest number of all ranks; they also wait for each other."""
    value = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return float(value)


def _print(rank: int, part: str, **values: float) -> None:
    if rank == 0:
        sys.stdout.write(json.dumps({"part": part, **values}) + "\n")
        sys.stdout.flush()


def _end_with_input() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
