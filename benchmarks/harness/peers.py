# SPDX-License-Identifier: Apache-2.0
"""Start of each peer's ranks, all with one program."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks.harness.hosts import INTERFACE, NETWORK, Host

ROOT = Path(__file__).parents[2]
_RANK = [sys.executable, "-m", "benchmarks.harness.rank"]
_PORTS = {"gloo": 29710, "bare": 29700, "smdist": 29720, "smdist-tf": 29730, "mirrored": 29740}


def start(peer: str, places: list[Host], socket_path: str) -> list[subprocess.Popen[bytes]]:
    """Start one rank on each host of `places`; each connects to the socket `socket_path`."""
    if peer == "openmpi":
        return [_start_openmpi(places, socket_path)]
    return [_start_torch(peer, rank, places, socket_path) for rank in range(len(places))]


def _start_torch(
    peer: str, rank: int, places: list[Host], socket_path: str
) -> subprocess.Popen[bytes]:
    host = places[rank]
    environment = {
        **_common(),
        "RANK": str(rank),
        "WORLD_SIZE": str(len(places)),
        "LOCAL_RANK": str(places[:rank].count(host)),
        "LOCAL_WORLD_SIZE": str(places.count(host)),
        "MASTER_ADDR": places[0].address,
        "MASTER_PORT": str(_PORTS[peer] if host.namespace else _free_port(peer, rank)),
    }
    if host.namespace:
        environment["GLOO_SOCKET_IFNAME"] = INTERFACE
    if peer == "mirrored":
        environment["TF_CONFIG"] = _tf_config(rank, places)
    command = [*host.prefix, *_RANK, peer, socket_path]
    return subprocess.Popen(command, env=environment, cwd=ROOT)


def _tf_config(rank: int, places: list[Host]) -> str:
    """Return TF_CONFIG for MultiWorkerMirroredStrategy: one worker per host, each with its port."""
    port = _PORTS["mirrored"]
    workers = [f"{host.address}:{port + number}" for number, host in enumerate(places)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}})


def _start_openmpi(places: list[Host], socket_path: str) -> subprocess.Popen[bytes]:
    """Start OpenMPI, on one host only.

    There may be more ranks than processors, so ranks yield while they wait.
    """
    assert all(place.namespace is None for place in places), f"no OpenMPI across {NETWORK}.0"
    options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    options += ["--mca", "mpi_yield_when_idle", "1", "--mca", "btl", "vader,self"]
    command = ["mpirun", *options, "-n", str(len(places)), *_RANK, "openmpi", socket_path]
    return subprocess.Popen(command, env=_common(), cwd=ROOT)


def _common() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


_chosen: dict[str, int] = {}


def _free_port(peer: str, rank: int) -> int:
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            _chosen[peer] = probe.getsockname()[1]
    return _chosen[peer]
