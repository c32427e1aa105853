# SPDX-License-Identifier: Apache-2.0
"""Runs a script on two emulated hosts with one rank each, and compares it with one rank.

    python -m gpu_run.on_hosts --device cuda script.py

The script must save its model to the file that it gets as --save-model. Hosts are network
namespaces, or two names in SMDIST_HOST_ID where this process may make none. They share a GPU where
the machine has one alone: each host sees one GPU, and calls it number 0.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.harness.hosts import EmulatedHosts, Host

_SUPPORT = Path(__file__).parents[1]
_SECONDS = 150.0
_RATE = "10gbit"
# GPUs multiply with fewer bits by default, and in another order than two of them.
_DISTANCES = {"cuda": 0.05, "testdev": 1e-4}


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        if options.without_namespaces:
            hosts = [Host(0), Host(1)]
        else:
            hosts = stack.enter_context(EmulatedHosts(2, _RATE)).hosts
        alone, both = Path(folder) / "alone.pt", Path(folder) / "both.pt"
        run_ranks(options, [Host(0)], alone)
        run_ranks(options, hosts, both)
        models = [torch.load(file, map_location="cpu") for file in (alone, both)]
        _compare(*models, _DISTANCES[options.device])


def run_ranks(options: argparse.Namespace, hosts: list[Host], model: Path) -> None:
    """Run one rank on each host to its end.

    Raises:
        SystemExit: A rank failed, or did not end in time.
    """
    port = str(_free_port())
    ranks = [
        subprocess.Popen(
            [*host.prefix, *_command(options), "--save-model", str(model)],
            env=_environ(rank, hosts, port),
        )
        for rank, host in enumerate(hosts)
    ]
    try:
        codes = [rank.wait(_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(codes):
        raise SystemExit(f"{options.script}: the ranks' exit codes are {codes}")


def _command(options: argparse.Namespace) -> list[str]:
    through = [] if options.device == "cuda" else [str(_SUPPORT / "device_mapping.py")]
    return [sys.executable, *through, options.script]


def _environ(rank: int, hosts: list[Host], port: str) -> dict[str, str]:
    own = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": hosts[0].address,
        "MASTER_PORT": port,
    }
    if hosts[rank].namespace is None:
        own["SMDIST_HOST_ID"] = f"host-{rank}"
    if count := torch.cuda.device_count():
        own["CUDA_VISIBLE_DEVICES"] = _visible(rank % count)
    return {**os.environ, **own}


def _visible(number: int) -> str:
    """Return the name of a GPU among those that this process may use."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return names[number] if names != [""] else str(number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _compare(alone: dict[str, torch.Tensor], both: dict[str, torch.Tensor], limit: float) -> None:
    """Compare two trained models.

    Raises:
        SystemExit: They differ by more than the limit.
    """
    distances = {name: float((alone[name] - both[name]).abs().max()) for name in alone}
    name = max(distances, key=distances.__getitem__)
    print(f"{name} differs most between one rank and two: by {distances[name]:.1e}, of {limit}")
    if distances[name] > limit:
        raise SystemExit(f"{name} differs by {distances[name]:.1e}, more than {limit}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script")
    parser.add_argument("--device", choices=list(_DISTANCES), required=True)
    parser.add_argument("--without-namespaces", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
