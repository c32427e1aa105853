# SPDX-License-Identifier: Apache-2.0
"""Rank of one peer: connects to the other ranks and runs the functions that the benchmark calls.

Run as `python -m benchmarks.harness.rank PEER SOCKET`. Connects to the Unix socket `SOCKET`, sends
its rank, and replies to each `(function, arguments)` with the function's result. It sleeps
between calls, so that the other peers can use the whole machine.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from multiprocessing.connection import Client, Connection

_TENSORFLOW = ("smdist-tf", "mirrored")


def main(peer: str, socket_path: str) -> None:
    rank = join(peer)
    with Client(socket_path, "AF_UNIX") as benchmark:
        benchmark.send(rank)
        serve(peer, benchmark)


def join(peer: str) -> int:
    if peer == "openmpi":
        from mpi4py import MPI

        return MPI.COMM_WORLD.rank
    if peer in _TENSORFLOW:
        from benchmarks.tf_step import work

        return work.join(peer)
    if peer == "bare":
        return int(os.environ["RANK"])
    import torch.distributed as dist

    if peer == "smdist":
        import smdist.dataparallel.torch  # noqa: F401
    import torch

    torch.set_num_threads(1)
    dist.init_process_group(_on_device(peer))
    return int(os.environ["RANK"])


def _on_device(peer: str) -> str:
    """Return the backend for a peer's tensors: on a device if the benchmark names one."""
    from benchmarks.gpu import devices

    return devices.take(peer) if devices.VARIABLE in os.environ else peer


def serve(peer: str, benchmark: Connection) -> None:
    while (order := benchmark.recv()) is not None:
        name, arguments = order
        module, function = name.split(":")
        try:
            answer = getattr(importlib.import_module(module), function)(**arguments)
            benchmark.send((answer, None))
        except Exception:
            benchmark.send((None, traceback.format_exc()))
    if peer == "bare":
        from benchmarks.allreduce import bare

        bare.leave()
    elif peer not in ("openmpi", *_TENSORFLOW):
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
