# SPDX-License-Identifier: Apache-2.0
"""Starts of real ranks: processes forked from one that has imported torch."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

import smdist.dataparallel.torch.torch_smddp as _registered  # registers the backend
from benchmarks.start.engines import BUILD, FAULTY_OF_1000, crowd

_TIMEOUT = timedelta(minutes=5)
# All that smdist would measure at the start; Gloo measures nothing.
_TUNING = {
    "SMDIST_LANES": "1",
    "SMDIST_CHUNK_BYTES": "262144",
    "SMDIST_ONE_SHOT_BYTES": "4096",
    "SMDIST_SINGLE_OWNER_BYTES": "0",
    "SMDIST_ARRIVING_BYTES": "229376",
}


@dataclass(frozen=True)
class ProcessStart:
    """Result of one start: time from the fork to the end of the first sum, and peak memory."""

    seconds: float
    failures: int
    mebibytes: float
    reason: str


class Parent:
    """Process that has imported torch and forks the ranks of one start after the other."""

    def __init__(self) -> None:
        environment = dict(os.environ) | _TUNING | {"OMP_NUM_THREADS": "1"}
        environment["LD_PRELOAD"] = str(BUILD / "libfaulty_sockets.so")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.start.processes"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def start(self, backend: str, size: int, *, is_crowded: bool, is_faulty: bool) -> ProcessStart:
        """Start `size` ranks of a backend of torch.distributed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        arguments = [backend, size, is_crowded, is_faulty]
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        return ProcessStart(**json.loads(self.process.stdout.readline()))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def _serve() -> None:
    """Fork a process for each start, so that none finds what an earlier one has left."""
    assert _registered
    gc.collect()
    gc.freeze()  # a collection in a rank would copy all pages of its parent's objects
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                _start(*json.loads(line))
            except Exception as error:
                print(json.dumps(vars(ProcessStart(0, -1, 0, repr(error)))), flush=True)
            os._exit(0)
        os.wait()


def _start(backend: str, size: int, is_crowded: bool, is_faulty: bool) -> None:
    os.environ["SMDIST_FAULTY_SOCKETS"] = str(FAULTY_OF_1000 if is_faulty else 0)
    port, store = _fork_store()
    begin = time.monotonic()
    children = [_fork(backend, rank, size, port, begin) for rank in range(size)]
    ports = _ports_of([pid for pid, _ in children], str(port)) if is_crowded else []
    with crowd(ports, is_crowded):
        rows = [json.loads(os.fdopen(pipe).readline()) for _, pipe in children]
    for pid in [pid for pid, _ in children] + [store]:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    result = ProcessStart(
        seconds=max(row["seconds"] for row in rows),
        failures=sum(bool(row["error"]) for row in rows),
        mebibytes=sum(row["kib"] for row in rows) / 1024,
        reason=next((row["error"] for row in rows if row["error"]), ""),
    )
    print(json.dumps(vars(result)), flush=True)


def _fork_store() -> tuple[int, int]:
    """Fork a process with the store of all ranks; return its port and the process.

    The store's thread may hold a lock of libc at any time: no rank is forked beside it.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    if pid := os.fork():
        listener.close()
        return port, pid
    store = TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    signal.pause()  # until all ranks have finished
    del store
    os._exit(0)


def _fork(backend: str, rank: int, size: int, port: int, begin: float) -> tuple[int, int]:
    """Fork a rank; return its process and the pipe in which its result will be."""
    reading, writing = os.pipe()
    if pid := os.fork():
        os.close(writing)
        return pid, reading
    os.close(reading)
    row = _rank(backend, rank, size, port, begin)
    os.write(writing, json.dumps(row).encode() + b"\n")
    signal.pause()  # until all ranks have finished
    os._exit(0)


def _rank(backend: str, rank: int, size: int, port: int, begin: float) -> dict[str, object]:
    """Join the group and add 400 KB of all ranks; return the time, the memory and the error."""
    error = ""
    try:
        os.environ["SMDIST_HOST_ID"] = str(rank)  # so that all ranks connect over TCP
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=_TIMEOUT)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
        values = torch.ones(100_000)
        dist.all_reduce(values)
        if values[-1] != size:
            error = f"the sum is {values[-1]}"
    except Exception as caught:
        error = repr(caught)
    seconds = time.monotonic() - begin
    return {"seconds": seconds, "kib": _own_kib(), "error": error}


def _own_kib() -> int:
    """Return this process's share of memory: of pages with other users, its part."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    found = re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE)
    return int(found[1]) if found else 0


def _ports_of(processes: list[int], store: str) -> list[str]:
    """Wait until all processes listen, or until the first one has ended.

    Return their ports, without the port of the store.
    """
    ports: set[str] = set()
    while len(ports) < len(processes):
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        owned = {inode for process in processes for inode in _sockets_of(process)}
        ports |= {port for port, inode in _listening() if inode in owned} - {store}
        time.sleep(0.01)
    return sorted(ports)


def _sockets_of(process: int) -> list[str]:
    links = Path(f"/proc/{process}/fd").glob("*")
    found = []
    for link in links:
        with suppress(OSError):  # closed meanwhile
            found += re.findall(r"^socket:\[(\d+)\]$", str(link.readlink()))
    return found


def _listening() -> Iterator[tuple[str, str]]:
    """Yield the port and the inode of each TCP socket that listens."""
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            yield str(int(words[1].split(":")[1], 16)), words[9]


if __name__ == "__main__":
    _serve()
