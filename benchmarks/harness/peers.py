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
_RANK = ["-m", "benchmarks.harness.rank"]
_NAMES = (
    "bare", "gloo", "smdist", "smdist-tf", "mirrored", "before", "now", "again",
    "off", "crc32c", "mac", "tls", "nccl",
)  # fmt: skip
_PORTS = {name: 29700 + 10 * number for number, name in enumerate(_NAMES)}


def start(
    peer: str, places: list[Host], socket_path: str, tree: Path | None = None, name: str = ""
) -> list[subprocess.Popen[bytes]]:
    """Start one rank on each host of `places`; each connects to the socket `socket_path`.

    Args:
        tree: Checkout whose Python and packages the ranks use; None: this one.
        name: Key of the port where ranks meet; by default the peer's.
    """
    if peer == "openmpi":
        return [_start_openmpi(places, socket_path)]
    root = tree or ROOT
    return [
        _start_torch(peer, rank, places, socket_path, root, name or peer)
        for rank in range(len(places))
    ]


def _start_torch(
    peer: str, rank: int, places: list[Host], socket_path: str, root: Path, name: str
) -> subprocess.Popen[bytes]:
    host = places[rank]
    environment = {
        **_common(root),
        "RANK": str(rank),
        "WORLD_SIZE": str(len(places)),
        "LOCAL_RANK": str(places[:rank].count(host)),
        "LOCAL_WORLD_SIZE": str(places.count(host)),
        "MASTER_ADDR": places[0].address,
        "MASTER_PORT": str(_PORTS[name] if host.namespace else _free_port(name, rank)),
    }
    if host.namespace:
        environment["GLOO_SOCKET_IFNAME"] = INTERFACE
    if peer == "mirrored":
        environment["TF_CONFIG"] = _tf_config(rank, places)
    python = sys.executable if root == ROOT else str(root / ".venv/bin/python")
    command = [*host.prefix, python, *_RANK, peer, socket_path]
    return subprocess.Popen(command, env=environment, cwd=root)


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
    rank = [sys.executable, *_RANK, "openmpi", socket_path]
    command = ["mpirun", *options, "-n", str(len(places)), *rank]
    return subprocess.Popen(command, env=_common(ROOT), cwd=ROOT)


def _common(root: Path) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(root)}


_chosen: dict[str, int] = {}


def _free_port(peer: str, rank: int) -> int:
    if rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            _chosen[peer] = probe.getsockname()[1]
    return _chosen[peer]
